// Blocks in the order of their last use: the RAM of a host, the shared tier, or what a host
// remembers of other hosts' blocks.
//
// Plain values; one thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace prefixd::bench {

// A node of a prefix tree: it names all blocks before it too. Blocks of other populations have
// other numbers.
using FleetBlock = uint64_t;

class RecentBlocks {
 public:
  explicit RecentBlocks(uint64_t capacity) : capacity_(capacity) {}

  uint64_t size() const { return places_.size(); }
  bool Contains(FleetBlock block) const { return places_.contains(block); }
  // When it was added or touched last. Requires: Contains(block).
  int64_t at_us(FleetBlock block) const { return nodes_[places_.at(block)].at_us; }
  // Makes the block the newest. False: it is not there.
  bool Touch(FleetBlock block, int64_t now_us = 0);
  // Touches the block, or inserts it, and drops the oldest one if there is no room.
  void Add(FleetBlock block, int64_t now_us = 0);
  void Forget(FleetBlock block);

  // How many blocks of the path are there before the first that is not.
  size_t Leading(std::span<const FleetBlock> path) const;
  // Inserts and touches the path, so that no block is older than those behind it: the oldest is
  // always a leaf. A path longer than the capacity keeps its head.
  void Use(std::span<const FleetBlock> path);

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Node {
    FleetBlock block = 0;
    int64_t at_us = 0;
    uint64_t use = 0;  // number of the Use that touched it last
    uint32_t newer = kNone, older = kNone;
  };
  void Link(uint32_t place);
  void Unlink(uint32_t place);
  uint32_t Insert(FleetBlock block);
  void Renew(uint32_t place, int64_t now_us);

  const uint64_t capacity_;
  absl::flat_hash_map<FleetBlock, uint32_t> places_;  // in nodes_
  std::vector<Node> nodes_;
  std::vector<uint32_t> free_;
  uint32_t newest_ = kNone, oldest_ = kNone;
  uint64_t uses_ = 0;
};

}  // namespace prefixd::bench
