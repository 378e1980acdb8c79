// What part of a RAM budget is pages: as the daemon cuts the budget (ram/budget.h) and the arena
// cuts its slabs (ram/arena.h).
//
// Pure functions.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"

namespace prefixd::sizing {

// How a model's blocks stand in RAM.
struct BlockShape {
  uint64_t bytes_per_token = 0;
  uint32_t block_tokens = 64;  // of the daemon's blocks
  bool shared_arena = true;    // else private memory
  // A block has so many pages. 0: as many equal ones as make at most 1 MiB each, as
  // block/split_layers.h splits a model of many layers.
  uint32_t pages = 0;
};

struct RamRoom {
  uint64_t tokens = 0;         // in full blocks
  uint64_t payload_bytes = 0;  // of these tokens
  uint64_t index_bytes = 0;    // that names of blocks may take at the start
  // What they may grow to, and how many tokens the arena gives up for each slab that they get.
  uint64_t index_most_bytes = 0, slab_bytes = 0, tokens_of_slab = 0;
  // What a block takes of them, and a block in RAM besides: at most so much (index/memory_test.cc).
  uint64_t index_bytes_per_block = 0, index_bytes_in_ram = 0;
};

// What a budget holds. InvalidArgument for a budget that the daemon would not start with.
absl::StatusOr<RamRoom> RoomOf(uint64_t ram_bytes, bool has_ssd, const BlockShape& shape);

}  // namespace prefixd::sizing
