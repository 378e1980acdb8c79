// What a policy reaches on a trace, on paper: no bytes, no pages, blocks alone. Calls nothing of
// the project.
//
// A hit is a block of a request that is present with all blocks before it. After the look-up every
// block of the request is inserted and refreshed, leaf to root.
//
// Plain values; one thread.
#pragma once
#include <cstdint>
#include <limits>

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

// What goes to the SSD when RAM gives up a block that is not there yet, within a budget of writes
// that fills evenly and keeps up to a window's worth. While much of it is left: everything. Then
// only what is shallow, was touched twice, or was here before (it was a ghost when it was stored
// again). With nothing left: nothing. What is read from the log is written again before it ages
// out, from the same budget.
struct SsdAdmission {
  double blocks_per_s = std::numeric_limits<double>::infinity();  // of the trace's time
  double window_s = 1200;
  double everything_above = 0.75;  // of a full budget
  uint64_t shallow_blocks = 6;     // 3k tokens
  uint64_t ghosts = 65536;         // of the blocks that were given up most recently
};

// RAM of `ram` blocks, the daemon's policy, over an SSD of `ssd` blocks: a log whose oldest block
// goes first. What is found on the SSD comes back to RAM, and stays there.
TraceResult SimulateTiers(const Trace& trace, uint64_t ram, uint64_t ssd,
                          const SsdAdmission& admission);

}  // namespace prefixd::bench
