// Ghosts: how much of a request lies in blocks that were given up and are remembered by their hash.
#include <algorithm>

#include "index/impl.h"

namespace prefixd::index {

uint32_t PrefixIndex::GhostTokens(block::SpaceHandle handle,
                                  const block::SequenceView& sequence) const {
  const base::MutexLock lock(impl_->mutex);
  Space* const space = impl_->FindSpace(handle);
  if (space == nullptr || impl_->ghosts.size() == 0) return 0;
  const uint32_t block_tokens = space->shape.block_tokens;
  const Walk walk = WalkDown(space->root, block_tokens, sequence);
  const auto size = static_cast<uint32_t>(sequence.tokens.size());
  block::BlockHash parent = walk.last->hash;
  uint32_t at = walk.base;
  while (at < size) {
    const Slice next(sequence, at, std::min(size, at + block_tokens));
    parent = impl_->Hash(parent, next.view());
    if (!impl_->ghosts.Contains(parent)) break;
    at += next.size();
  }
  return at - std::min(at, walk.matched());
}

}  // namespace prefixd::index
