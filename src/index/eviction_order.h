// Which block's RAM pages are given up next.
//
// Internal to index/. The index says which blocks may go at all (nobody holds or needs them,
// nothing below them is in RAM) and keeps that true after every change; a policy orders them.
// Guarded by the index's mutex.
#pragma once
#include <memory>

#include "index/node.h"

namespace prefixd::index {

class EvictionPolicy {
 public:
  enum class Place { kNone, kClean, kDirty };

  virtual ~EvictionPolicy() = default;
  // The block may go from now on (clean: every RAM page is on SSD too), or may not. Called again
  // whenever its stamp changed.
  virtual void Put(Node& node, Place place) = 0;
  // The next victim; nullptr when there is none. Dirty ones only if `may_drop_dirty`. Never of a
  // space at or below its floor; of a space above its ceiling before all others.
  virtual Node* Next(bool may_drop_dirty) const = 0;
  // The same of one space, whatever its floor.
  virtual Node* NextOf(const Space& space, bool may_drop_dirty) const = 0;
  // Whether the block is where Put() placed it last; for Validate.
  virtual bool Is(const Node& node, Place place) const = 0;
  virtual size_t size() const = 0;
};

// Leaf-first LRU: of the blocks that may go, which are leaves by then, the one whose last use is
// longest ago.
std::unique_ptr<EvictionPolicy> MakeLeafLru();

}  // namespace prefixd::index
