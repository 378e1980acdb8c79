// What a policy reaches on a trace, on paper: no bytes, no pages, blocks alone. Calls nothing of
// the project.
//
// A hit is a block of a request that is present with all blocks before it. After the look-up every
// block of the request is inserted and refreshed, leaf to root.
//
// Plain values; one thread.
#pragma once
#include <cstdint>

#include "bench/trace/file.h"

namespace prefixd::bench {

struct TraceResult {
  uint64_t requested = 0;  // blocks
  uint64_t ram_hits = 0, ssd_hits = 0;
  uint64_t ssd_writes = 0;  // blocks
  uint64_t hits() const { return ram_hits + ssd_hits; }
  double Percent(uint64_t blocks) const {
    if (requested == 0) return 0;
    return 100.0 * static_cast<double>(blocks) / static_cast<double>(requested);
  }
  double hit_percent() const { return Percent(hits()); }
  double writes_per_request() const { return Percent(ssd_writes) / 100; }
};

// Leaf-first LRU of `capacity` blocks.
TraceResult SimulateLeafLru(const Trace& trace, uint64_t capacity);

// The daemon's policy: the same, but while the blocks that were read since they were inserted are
// at most a quarter of the capacity, the others go first.
TraceResult SimulateSparingLru(const Trace& trace, uint64_t capacity);

}  // namespace prefixd::bench
