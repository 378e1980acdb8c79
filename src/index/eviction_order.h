// Decides which block's RAM pages are given up next.
//
// Internal to index/. The index says which blocks may go at all (nobody holds or needs them,
// nothing below them is in RAM) and updates that after every change; a policy orders them.
// Guarded by the index's mutex.
//
// Sliding pages go first if no restorable point (the end of a sequence or a turn, a leaf, a block
// where sequences part) can need them; then blocks go, all of their pages together. Snapshots also
// go by themselves when their share of RAM is used up (loose.cc).
#pragma once
#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"

#include "index/node.h"
#include "index/space.h"

namespace prefixd::index {

class EvictionPolicy {
 public:
  using Place = EvictPlace;

  virtual ~EvictionPolicy() = default;
  // Says that the block may go (kClean: every RAM page is on SSD too or was refused there; kDirty)
  // or may not (kNone). Before its stamp or its touches change the index puts it into kNone,
  // afterwards back.
  virtual void Put(Node& node, Place place) = 0;
  // Returns the next victim, nullptr when there is none. Dirty blocks only if `may_drop_dirty`.
  // Spares spaces at or below their floor; spaces above their ceiling come before all others.
  virtual Node* Next(bool may_drop_dirty) const = 0;
  // Returns the next victim of one space, whatever its floor.
  virtual Node* NextOf(const Space& space, bool may_drop_dirty) const = 0;
  // Returns whether the block's class is within its share now, so that others go before it.
  virtual bool Spares(const Node& node) const = 0;
  // Called after the space's limits changed.
  virtual void LimitsChanged(const Space& space) = 0;
  // Returns whether the block stands in the orders as `place` says; for Validate.
  virtual bool Is(const Node& node, Place place) const = 0;
  virtual size_t size() const = 0;
};

// Makes a leaf-first LRU of two classes. Of the blocks that may go, which have nothing below them
// in RAM, the victim is the one whose last use is longest ago; while the blocks that were read
// again since they were stored take at most limits.most_spared_bytes, the victim is one that was
// not, if there is one. So a flood of new blocks, which nobody may ever ask for, does not push them
// out. `totals` and `limits` are the index's and outlive the policy.
std::unique_ptr<EvictionPolicy> MakeSparingLru(const Totals& totals,
                                               const PrefixIndex::Limits& limits);

// Blocks of which some pages may go alone, coldest first: sliding pages, or snapshots.
class LooseOrder {
 public:
  // Adds or removes the block. The caller calls it again after its stamp changed.
  void Put(Node& node, bool wanted);
  // Returns the coldest block whose space is above its floor and for which may_go(node) is true;
  // nullptr if none of the first `looks` blocks is one.
  Node* Next(const std::function<bool(const Node&)>& may_go, int looks) const;
  bool Contains(const Node& node) const { return stamps_.contains(&node); }
  size_t size() const { return stamps_.size(); }

 private:
  Order order_;
  absl::flat_hash_map<const Node*, int64_t> stamps_;
};

}  // namespace prefixd::index
