#include "sizing/dirty_order.h"

namespace prefixd::sizing {

// Puts the block on the older side of `newer`; kNoBlock: it becomes the newest.
void DirtyOrder::InsertBefore(TraceBlock newer, TraceBlock block) {
  const TraceBlock older = newer == kNoBlock ? newest_ : blocks_[newer].older;
  blocks_[block] = {.newer = newer, .older = older, .in = true};
  (newer == kNoBlock ? newest_ : blocks_[newer].older) = block;
  (older == kNoBlock ? oldest_ : blocks_[older].newer) = block;
}

void DirtyOrder::Touch(TraceBlock block) {
  if (block == newest_) return;
  if (Has(block)) Remove(block);
  InsertBefore(kNoBlock, block);
}

void DirtyOrder::Merge(std::span<const TraceBlock> blocks, const SimulatedRam& ram) {
  TraceBlock newer = oldest_;
  for (const TraceBlock block : blocks) {
    while (newer != kNoBlock && ram.stamp(newer) < ram.stamp(block)) newer = blocks_[newer].newer;
    InsertBefore(newer, block);
  }
}

void DirtyOrder::Remove(TraceBlock block) {
  const Place place = blocks_[block];
  (place.newer == kNoBlock ? newest_ : blocks_[place.newer].older) = place.older;
  (place.older == kNoBlock ? oldest_ : blocks_[place.older].newer) = place.newer;
  blocks_[block].in = false;
}

}  // namespace prefixd::sizing
