// A trace played against the real daemon.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "bench/common/bench.h"
#include "bench/common/daemon_process.h"
#include "bench/common/daemon_stats.h"
#include "bench/common/raw_session.h"
#include "bench/trace/geometry.h"
#include "bench/trace/simulation.h"

namespace prefixd::bench {

// What a request found: its leading blocks.
struct TraceLookUp {
  uint64_t ram = 0, ssd = 0;  // by the tier they were in
  uint64_t beyond_quota = 0;  // of both: present, but more than one lease may cover
};

// What a cache counted, in bytes of pages.
struct TraceWrites {
  uint64_t spilled_bytes = 0, rewritten_bytes = 0;
  uint64_t ssd_file_bytes = 0;  // now
};

// What a cache counted, in its own tokens.
struct TraceTokens {
  uint64_t requested = 0, restorable = 0;
  uint64_t from_ssd = 0;  // of these
};

// Budgets of a run; ssd_bytes 0: RAM alone.
struct TraceBudget {
  TraceShape shape;
  uint64_t ram_bytes = 0, ssd_bytes = 0;
  std::string write_share = "30%";  // as the daemon's default
  std::string directory = {};       // of the SSD tier, sockets and logs
};

// A daemon that a trace is played against: its pages by Put and Fetch, in its own time.
//
// One thread.
class TracePlayer {
 public:
  static absl::StatusOr<std::unique_ptr<TracePlayer>> Start(const TraceBudget& budget);
  // Looks the path up and reads what the SSD has of it; stores what is missing; gives all up.
  absl::StatusOr<TraceLookUp> Play(std::span<const TraceBlock> path);
  absl::StatusOr<TraceWrites> Writes();
  absl::StatusOr<TraceTokens> Tokens();

 private:
  explicit TracePlayer(const TraceBudget& budget);
  v1::Sequence SequenceOf(std::span<const block::Token> tokens) const;
  absl::StatusOr<TraceLookUp> Count(const v1::Answer& answer);
  absl::StatusOr<uint32_t> ReadAll(uint64_t lease);  // usable tokens
  absl::Status Store(std::span<const block::Token> tokens);
  v1::CommitRequest HeaderOf(const v1::ReserveReply& plan, int end) const;
  absl::Status Commit(const v1::ReserveReply& plan, int end);
  absl::StatusOr<bool> Put(const v1::ReserveReply& plan, int first, int end);
  void Abandon(uint64_t reservation);

  const TraceShape shape_;
  const bool has_ssd_;
  v1::PageBytes page_;  // every page's, but for its place
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<DaemonStats> stats_;
  std::unique_ptr<RawSession> session_;
  uint64_t space_ = 0;
};

struct TraceRun {
  TraceResult result;
  uint64_t beyond_quota = 0;  // blocks of result's hits
  uint64_t stored_bytes = 0;  // pages of blocks that missed
  TraceWrites writes;
  double wall_us = 0;
};
absl::StatusOr<TraceRun> PlayTrace(const Trace& trace, const TraceShape& shape,
                                   TracePlayer& player);

// Models whose layers are not all full attention (hybrid.cc).
void TraceHybrid(Bench& bench);

}  // namespace prefixd::bench
