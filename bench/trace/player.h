// A cache that a trace is played against: in this process, or a daemon's over the wire.
//
// One thread a player.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "base/clock.h"
#include "bench/common/bench.h"
#include "bench/common/daemon_process.h"
#include "bench/trace/geometry.h"
#include "bench/trace/simulation.h"
#include "cache/cache.h"

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

class TracePlayer {
 public:
  virtual ~TracePlayer() = default;
  // Looks the path up and reads what the SSD has of it; stores what is missing; gives all up.
  virtual absl::StatusOr<TraceLookUp> Play(std::span<const TraceBlock> path) = 0;
  // The trace's time, where the cache goes by it.
  virtual void PassTime(double ms) = 0;
  virtual absl::StatusOr<TraceWrites> Writes() = 0;
};

// Budgets of a run; ssd_bytes 0: RAM alone.
struct TraceBudget {
  TraceShape shape;
  uint64_t ram_bytes = 0, ssd_bytes = 0;
  uint64_t segment_bytes = uint64_t{8} << 20;  // in this process
  double write_share = 0.3;                    // as the daemon's default
  std::string directory = {};                  // of the SSD tier, sockets and logs
};

// cache::Cache in this process, its clock the trace's.
absl::StatusOr<std::unique_ptr<TracePlayer>> PlayInProcess(const TraceBudget& budget);
// The real daemon, its pages by Put and Fetch.
absl::StatusOr<std::unique_ptr<TracePlayer>> PlayDaemon(const TraceBudget& budget);

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
