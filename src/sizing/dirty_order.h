// The dirty blocks of a simulation, those whose last use is longest ago first.
//
// Plain values; one thread.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "sizing/simulated_ram.h"
#include "sizing/trace.h"

namespace prefixd::sizing {

class DirtyOrder {
 public:
  explicit DirtyOrder(size_t blocks) : blocks_(blocks) {}

  bool Has(TraceBlock block) const { return blocks_[block].in; }
  bool empty() const { return oldest_ == kNoBlock; }
  TraceBlock oldest() const { return oldest_; }
  // The block was used just now. It is added, or becomes the newest.
  void Touch(TraceBlock block);
  // Adds blocks that were used before, in the order of their last use. Requires: none is there.
  void Merge(std::span<const TraceBlock> blocks, const SimulatedRam& ram);
  // Requires: Has(block).
  void Remove(TraceBlock block);

 private:
  struct Place {
    TraceBlock newer = kNoBlock, older = kNoBlock;
    bool in = false;
  };
  void InsertBefore(TraceBlock newer, TraceBlock block);

  std::vector<Place> blocks_;
  TraceBlock newest_ = kNoBlock, oldest_ = kNoBlock;
};

}  // namespace prefixd::sizing
