// Which block's RAM pages are given up next.
//
// Internal to index/. The index says which blocks may go at all (nobody holds or needs them,
// nothing below them is in RAM) and keeps that true after every change; a policy orders them.
// Guarded by the index's mutex.
//
// First go sliding pages that no restorable point (the end of a sequence or a turn, a leaf, a block
// where sequences part) can need; then blocks, all of their pages together. Snapshots go by
// themselves as their share of RAM is used up (loose.cc).
#pragma once
#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"

#include "index/node.h"

namespace prefixd::index {

class EvictionPolicy {
 public:
  using Place = EvictPlace;

  virtual ~EvictionPolicy() = default;
  // The block may go from now on (clean: every RAM page is on SSD too), or may not. Called again
  // whenever its stamp changed.
  virtual void Put(Node& node, Place place) = 0;
  // The next victim; nullptr when there is none. Dirty ones only if `may_drop_dirty`. Never of a
  // space at or below its floor; of a space above its ceiling before all others.
  virtual Node* Next(bool may_drop_dirty) const = 0;
  // The same of one space, whatever its floor.
  virtual Node* NextOf(const Space& space, bool may_drop_dirty) const = 0;
  // The space's limits are others than before.
  virtual void LimitsChanged(const Space& space) = 0;
  // Whether the block is where Put() placed it last; for Validate.
  virtual bool Is(const Node& node, Place place) const = 0;
  virtual size_t size() const = 0;
};

// Leaf-first LRU: of the blocks that may go, which are leaves by then, the one whose last use is
// longest ago.
std::unique_ptr<EvictionPolicy> MakeLeafLru();

// Blocks of which some pages may go alone, coldest first: sliding pages, or snapshots.
class LooseOrder {
 public:
  // Called again whenever its stamp changed.
  void Put(Node& node, bool wanted);
  // The coldest whose space is above its floor and for which may_go(node) is true, looking at no
  // more than `looks`.
  Node* Next(const std::function<bool(const Node&)>& may_go, int looks) const;
  bool Contains(const Node& node) const { return stamps_.contains(&node); }
  size_t size() const { return stamps_.size(); }

 private:
  Order order_;
  absl::flat_hash_map<const Node*, int64_t> stamps_;
};

}  // namespace prefixd::index
