#include "index/walk.h"

#include <algorithm>

#include "index/space.h"

namespace prefixd::index {
namespace {

// How many siblings are looked at to count ends; with more the count is below the truth.
constexpr uint32_t kMaxSiblingsCounted = 4096;

// Returns the number of ends of `node` at more than `count` tokens and of all its descendants.
uint64_t EndsBeyond(const Node& node, uint32_t count) {
  EndSet within = node.ends();
  for (uint32_t k = count; k < within.size(); ++k) within.reset(k);
  return node.subtree_ends - within.count();
}

WalkEnd LookInside(const Walk& walk, const block::SequenceView& head) {
  WalkEnd end;
  end.hole = true;
  Node* const first = FirstExtending(*walk.last, head);
  end.declared = first->ends().test(walk.shared - 1);
  uint32_t seen = 0;
  uint64_t beyond = 0;
  const Children& children = walk.last->children();
  for (auto it = children.find(first); it != children.end(); ++it, ++seen) {
    if (block::CommonPrefix((*it)->view(), head) < walk.shared) break;
    if ((*it)->size() > walk.shared) end.goes_on = true;
    if (AnyPresent(**it)) end.hole = false;
    beyond += EndsBeyond(**it, walk.shared);
    if (beyond >= kMaxDiverged || seen >= kMaxSiblingsCounted) break;
  }
  end.ends_beyond = static_cast<uint32_t>(std::min<uint64_t>(beyond, kMaxDiverged));
  return end;
}

}  // namespace

Node* ExactChild(const Node& parent, const block::SequenceView& tokens) {
  if (Node* const likely = parent.children().likely();
      likely != nullptr && likely->size() == tokens.tokens.size()) {
    ++*parent.space()->comparisons;
    if (block::CommonPrefix(likely->view(), tokens) == likely->size()) return likely;
  }
  const auto it = parent.children().find(tokens);
  return it == parent.children().end() ? nullptr : *it;
}

Node* FirstExtending(const Node& parent, const block::SequenceView& tokens) {
  const auto it = parent.children().lower_bound(tokens);
  if (it == parent.children().end()) return nullptr;
  return block::CommonPrefix((*it)->view(), tokens) == tokens.tokens.size() ? *it : nullptr;
}

uint32_t BestShared(const Node& parent, const block::SequenceView& tokens) {
  const auto best = ByShared(parent, tokens).Next();
  return best.has_value() ? best->shared : 0;
}

ByShared::ByShared(const Node& parent, const block::SequenceView& tokens)
    : children_(parent.children()), tokens_(tokens) {
  up_ = down_ = children_.lower_bound(tokens);
  LoadUp();
  LoadDown();
}

uint32_t ByShared::Shared(Children::const_iterator it) const {
  return block::CommonPrefix((*it)->view(), tokens_);
}
void ByShared::LoadUp() { shared_up_ = up_ == children_.end() ? 0 : Shared(up_); }
void ByShared::LoadDown() {
  shared_down_ = down_ == children_.begin() ? 0 : Shared(std::prev(down_));
}

std::optional<ByShared::Neighbour> ByShared::Next() {
  if (shared_up_ == 0 && shared_down_ == 0) return std::nullopt;
  Neighbour next;
  if (shared_up_ >= shared_down_) {
    next = {*up_, shared_up_};
    ++up_;
    LoadUp();
  } else {
    --down_;
    next = {*down_, shared_down_};
    LoadDown();
  }
  return next;
}

Walk WalkDown(Node& root, uint32_t block_tokens, const block::SequenceView& request) {
  Walk walk;
  walk.last = &root;
  const auto size = static_cast<uint32_t>(request.tokens.size());
  walk.path.reserve(std::min(size / block_tokens, uint32_t{1} << 16));
  while (walk.base < size && !walk.last->children().empty()) {
    const Slice slice(request, walk.base, std::min(size, walk.base + block_tokens));
    Node* const child =
        slice.size() == block_tokens ? ExactChild(*walk.last, slice.view()) : nullptr;
    if (child == nullptr) {
      walk.shared = BestShared(*walk.last, slice.view());
      break;
    }
    walk.path.push_back(child);
    walk.last = child;
    walk.base += block_tokens;
  }
  return walk;
}

WalkEnd LookAtEnd(const Walk& walk, uint32_t block_tokens, const block::SequenceView& request) {
  if (walk.shared > 0) {
    const Slice head(request, walk.base, walk.base + walk.shared);
    return LookInside(walk, head.view());
  }
  WalkEnd end;
  end.goes_on = !walk.last->children().empty();
  if (walk.last->is_root()) {
    end.ends_beyond =
        static_cast<uint32_t>(std::min<uint64_t>(walk.last->subtree_ends, kMaxDiverged));
    return end;
  }
  end.declared = walk.last->ends().test(block_tokens - 1);
  end.hole = !AnyPresent(*walk.last);
  end.ends_beyond =
      static_cast<uint32_t>(std::min<uint64_t>(EndsBeyond(*walk.last, block_tokens), kMaxDiverged));
  return end;
}

}  // namespace prefixd::index
