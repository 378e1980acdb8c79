// A block as its record tells of it. Plain values.
#pragma once
#include <cstdint>
#include <vector>

#include "block/block_hash.h"
#include "block/tokens.h"

namespace prefixd::index {

// Numbers that no other block of the cache ever had.
struct Serials {
  uint64_t own = 0;     // 0: the block is never a parent
  uint64_t parent = 0;  // 0: the parent is the root
  bool operator==(const Serials&) const = default;
};

struct RestoredPage {
  uint32_t group = 0;
  uint32_t rung = 0;
  uint32_t tokens = 0;
  uint64_t page_bytes = 0;
  uint64_t payload_bytes = 0;
  uint64_t check = 0;
  uint64_t ssd_sequence = 0;
};
struct RestoredBlock {
  block::BlockHash hash{}, parent{};
  Serials serials;
  std::vector<uint64_t> other_serials;  // serials by which children's records may name it too
  std::vector<block::Token> tokens;
  std::vector<block::ContentKey> content;
  std::vector<uint32_t> ends;
  std::vector<RestoredPage> pages;
  uint64_t record_sequence = 0;
  int64_t last_use = 0;  // stamp; later uses get higher ones. 0 if unknown
};

}  // namespace prefixd::index
