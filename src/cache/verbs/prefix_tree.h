// The blocks that requests read, as a tree of prefixes: what all of some requests read is one
// prefix, however many blocks it has.
//
// Not thread-safe. Memory: some 100 bytes for each different block.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "block/answer.h"
#include "index/path_block.h"

namespace prefixd::cache {

class PrefixTree {
 public:
  bool Knows(uint64_t node_id) const { return blocks_.contains(node_id); }
  size_t size() const { return blocks_.size(); }

  // Adds a request that read up to path.front(). `path` is of PathUp(): it ends with a block that
  // is known, or with the first of its sequence.
  void Add(const block::SpaceId& space, std::span<const index::PathBlock> path, double age_s);

  // Returns the `most` prefixes of which most tokens were read, each with those that it goes on
  // from: fewer of the former, where there is no room for both.
  std::vector<block::HotPrefix> Hottest(uint32_t most) const;

 private:
  struct Block {
    index::PathBlock block;
    uint64_t parent = kNone;
    block::SpaceId space{};
    uint64_t requests = 0;  // that end here
    double age_s = 0;
  };
  static constexpr uint64_t kNone = ~uint64_t{0};

  absl::flat_hash_map<uint64_t, Block> blocks_;
};

}  // namespace prefixd::cache
