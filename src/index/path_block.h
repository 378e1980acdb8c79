// A block as PrefixIndex::PathUp tells of it.
#pragma once
#include <cstdint>

#include "block/block_hash.h"

namespace prefixd::index {

// A block on the way from another one up to the root.
struct PathBlock {
  uint64_t node_id = 0;  // of BlockRef
  block::BlockHash hash{};
  uint32_t begin = 0, end = 0;            // in tokens
  uint64_t ram_bytes = 0, ssd_bytes = 0;  // of its pages; a page may be in both
};

}  // namespace prefixd::index
