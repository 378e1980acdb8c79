#include "sizing/simulated_ram.h"

namespace prefixd::sizing {

void SimulatedRam::Link(TraceBlock block) {
  List& list = lists_[blocks_[block].read];
  blocks_[block].newer = kNoBlock;
  blocks_[block].older = list.newest;
  if (list.newest != kNoBlock) blocks_[list.newest].newer = block;
  list.newest = block;
  if (list.oldest == kNoBlock) list.oldest = block;
}

void SimulatedRam::Unlink(TraceBlock block) {
  const Block& of = blocks_[block];
  List& list = lists_[of.read];
  (of.newer == kNoBlock ? list.newest : blocks_[of.newer].older) = of.older;
  (of.older == kNoBlock ? list.oldest : blocks_[of.older].newer) = of.newer;
}

void SimulatedRam::Touch(TraceBlock block, uint64_t uses, bool read) {
  Block& of = blocks_[block];
  of.stamp = ++clock_;
  of.uses = uses;
  const bool moves = read && !of.read;
  if (!moves && lists_[of.read].newest == block) return;
  Unlink(block);
  if (moves) {
    of.read = true;
    read_ += of.size;
  }
  Link(block);
}

void SimulatedRam::Insert(TraceBlock block, TraceBlock parent, uint32_t size, uint64_t uses) {
  blocks_[block] = {.parent = parent, .stamp = ++clock_, .uses = uses, .size = size, .in = true};
  if (parent != kNoBlock) ++blocks_[parent].children;
  used_ += size;
  ++count_;
  Link(block);
}

void SimulatedRam::SetMayGo(TraceBlock block, bool may_go) {
  Block& of = blocks_[block];
  if (of.may_go == may_go) return;
  of.may_go = may_go;
  may_go_ += may_go ? of.size : uint64_t{0} - of.size;
}

TraceBlock SimulatedRam::Oldest(const List& list, uint64_t uses, uint64_t before) const {
  for (TraceBlock at = list.oldest; at != kNoBlock; at = blocks_[at].newer) {
    const Block& block = blocks_[at];
    // All newer ones are of this request, or too new, as well.
    if (block.uses == uses || block.stamp >= before) return kNoBlock;
    if (block.may_go && block.children == 0) return at;
  }
  return kNoBlock;
}

TraceBlock SimulatedRam::Victim(uint64_t uses) const {
  constexpr uint64_t kAny = ~uint64_t{0};
  const TraceBlock unread = Oldest(lists_[0], uses, kAny);
  if (unread == kNoBlock) return Oldest(lists_[1], uses, kAny);
  if (Spares()) return unread;
  // Many that were read have blocks below them that were not: only older ones are looked at.
  const TraceBlock read = Oldest(lists_[1], uses, blocks_[unread].stamp);
  return read == kNoBlock ? unread : read;
}

void SimulatedRam::Evict(TraceBlock block) {
  Block& of = blocks_[block];
  SetMayGo(block, false);
  Unlink(block);
  if (of.parent != kNoBlock) --blocks_[of.parent].children;
  if (of.read) read_ -= of.size;
  used_ -= of.size;
  --count_;
  of.in = false;
}

}  // namespace prefixd::sizing
