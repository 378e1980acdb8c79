// What a cache of a given size hits on a trace: prefixd's policies on blocks alone, without bytes.
//
// RAM: leaf-first LRU; while the blocks that were read since they were stored take at most a
// quarter, the others go first (index/eviction_order.h). SSD: a log of segments; blocks are written
// ahead of eviction, within a budget of writes that fills with what is asked for
// (cache/store/segments.h); of the segments that leave, what was used since it was written is
// written again. A disk that keeps up is assumed, and that loading pays.
//
// Pure functions; the time is about 20 ns for a block of a request without SSD, and a few times
// that with it.
#pragma once
#include <cstdint>

#include "sizing/trace.h"

namespace prefixd::sizing {

struct CacheSize {
  uint64_t ram_tokens = 0;  // in full blocks: RoomOf
  uint64_t ssd_tokens = 0;  // that the SSD's budget has bytes for; 0: no SSD
  // The daemon's settings.
  double ssd_write_share = 0.3;  // of what is asked for; 0: no limit
  uint64_t ssd_shallow_tokens = 3072;
  uint64_t ssd_segment_tokens = 0;  // of a segment; 0: a 64th of ssd_tokens
  // The index's memory, which holds the names of all blocks; 0: no limit. What a block takes of it,
  // and one that is in RAM besides.
  uint64_t index_bytes = 0, index_bytes_per_block = 0, index_bytes_in_ram = 0;
  // What it may grow to, by slabs of RAM, which has less room then (cache/room/index_share.cc).
  uint64_t index_most_bytes = 0, slab_bytes = 0, ram_tokens_of_slab = 0;
  uint64_t ghosts = 65536;  // blocks that are remembered after they were given up
  bool operator==(const CacheSize&) const = default;
};

struct Hits {
  uint64_t requested_tokens = 0;
  uint64_t ram_tokens = 0, ssd_tokens = 0;  // of these, found in the tier
  uint64_t ssd_written_tokens = 0;          // for the first time or again
  uint64_t tokens() const { return ram_tokens + ssd_tokens; }
  double Share(uint64_t tokens) const {
    return requested_tokens == 0
               ? 0
               : static_cast<double>(tokens) / static_cast<double>(requested_tokens);
  }
};

// Plays the whole trace against an empty cache.
Hits Simulate(const Trace& trace, const CacheSize& size);

// The same with room for everything: no cache hits more.
Hits HitsOfAll(const Trace& trace);

}  // namespace prefixd::sizing
