// Prompts through the cache in this process, for a model with layers that are not full attention:
// each asks, stores what the plan wants, and what it could use is compared with what an oracle that
// remembers every page says.
//
// One thread.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace prefixd::bench {

enum class OtherLayers {
  kRecurrent,  // three of four; a snapshot is worth 64 tokens of KV
  kSliding,    // five of six, with a window of 1,024 tokens
};

struct HybridResult {
  uint64_t requests = 0, requested = 0;  // tokens
  uint64_t full_hits = 0;                // of a model of full attention alone
  uint64_t hits = 0;
  uint64_t oracle_hits = 0, unlike_oracle = 0;  // requests whose length is another
  uint64_t stored = 0;                          // tokens, each once
  uint64_t full_bytes = 0;  // of all layers of a model of attention alone, or of those that are
  uint64_t held_bytes = 0;  // pages and snapshots, at most at any time
  double extra() const {
    return static_cast<double>(held_bytes) / static_cast<double>(full_bytes) - 1;
  }
};

// `ram_bytes`: the cache's budget. With less than everything takes, the oracle knows too much.
absl::StatusOr<HybridResult> PlayHybrid(const std::vector<std::vector<uint32_t>>& prompts,
                                        OtherLayers layers, uint64_t ram_bytes);

}  // namespace prefixd::bench
