// A plan: what hit rate which sizes of RAM and SSD would give on a trace.
//
// Pure functions.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "sizing/ram_room.h"
#include "sizing/simulation.h"
#include "sizing/trace.h"

namespace prefixd::sizing {

struct PlanOptions {
  BlockShape shape;
  std::vector<uint64_t> ram_bytes;  // empty: a ladder up to the trace's working set
  std::vector<uint64_t> ssd_bytes;  // 0 is none; empty: none, a quarter and all of the working set
  double ssd_write_share = 0.3;     // as the daemon's settings
  uint64_t ssd_shallow_tokens = 3072;
};

struct PlanCell {
  uint64_t ram_bytes = 0, ssd_bytes = 0;
  Hits hits;
};

struct Plan {
  uint64_t requests = 0;
  uint64_t working_set_tokens = 0;             // different ones
  uint64_t working_set_bytes = 0;              // of their pages
  Hits most;                                   // of a cache with room for everything
  std::vector<uint64_t> ram_bytes, ssd_bytes;  // ascending
  std::vector<PlanCell> cells;                 // by RAM, then by SSD
  const PlanCell& cell(size_t ram, size_t ssd) const { return cells[ram * ssd_bytes.size() + ssd]; }

  // The smallest RAM budget without SSD that reaches a share of the most, within a sixteenth, and
  // the smallest cell with SSD that does; none: not among these sizes.
  struct Reached {
    double share = 0;
    std::optional<PlanCell> ram_alone, with_ssd;
  };
  std::vector<Reached> reached;  // 90, 95, 99 %
  // What twice the RAM gives: from the budget that reaches 90 % of the most, or else from the
  // largest.
  PlanCell before, after;
};

// InvalidArgument, saying which, for a budget that prefixd would not start with, and where
// bytes_per_token is 0 or above 64 MiB, or a block does not fit into the arena of any budget.
absl::StatusOr<Plan> MakePlan(const Trace& trace, const PlanOptions& options);

}  // namespace prefixd::sizing
