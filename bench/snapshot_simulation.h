// What snapshots of recurrent layers reach on prompts, on paper: no bytes, no pages. Calls nothing
// of the project.
//
// A request may use the longest snapshot that stands at exactly its length on the request's path,
// of at most what is shared with an earlier prompt and one token less than the request. Snapshots
// are taken where a later request may go on: before the last token, and where the prompt leaves
// what was there. They have a share of their own; the least recently used goes.
//
// Plain values; one thread.
#pragma once
#include <cstdint>
#include <vector>

namespace prefixd::bench {

struct SnapshotPolicy {
  double share = 0.15;            // of the tokens' bytes
  double tokens_a_snapshot = 64;  // that its bytes are worth
  bool branch_points = true;
};

struct SnapshotResult {
  uint64_t requested = 0;    // tokens
  uint64_t full_hits = 0;    // of a model with attention alone
  uint64_t hybrid_hits = 0;  // of one with recurrent layers
  uint64_t stored = 0;       // tokens, each once
  uint64_t snapshots = 0;    // held at the end
  double hit_ratio() const {
    return full_hits == 0 ? 1 : static_cast<double>(hybrid_hits) / static_cast<double>(full_hits);
  }
  double extra(const SnapshotPolicy& policy) const {
    return static_cast<double>(snapshots) * policy.tokens_a_snapshot / static_cast<double>(stored);
  }
};

SnapshotResult SimulateSnapshots(const std::vector<std::vector<uint32_t>>& prompts,
                                 const SnapshotPolicy& policy);

}  // namespace prefixd::bench
