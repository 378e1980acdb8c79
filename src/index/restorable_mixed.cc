// The restorable length of requests with sliding or state groups.
#include <algorithm>

#include "base/steps.h"
#include "index/node_pool.h"
#include "index/restorable.h"

namespace prefixd::index {
namespace {

constexpr uint32_t kNoGap = ~uint32_t{0};

}  // namespace

// One search along one walk, from the longest length down. Blocks count from the root.
class MixedSearch {
 public:
  MixedSearch(const Walk& walk, uint32_t block_tokens, const block::SequenceView& request,
              const Usable& usable)
      : walk_(walk), block_tokens_(block_tokens), request_(request), usable_(usable) {
    gaps_.assign(usable.groups.size(), kNoGap);
    there_from_.assign(usable.groups.size(), kNoGap);
    has_state_ = std::ranges::any_of(usable.groups, &Usable::Group::state);
    reach_ = Reach();
  }

  // Returns the longest length of at most `limit`, 0 if none. Requires: `limit` never grows.
  uint32_t Find(uint32_t limit) {
    limit = std::min(limit, walk_.matched());
    last_ = {};
    block_ = 0;
    if (limit == 0 || usable_.groups.empty()) return 0;
    for (uint32_t block = std::min(reach_, (limit - 1) / block_tokens_) + 1; block-- > 0;) {
      base::CountSteps();
      last_ = BestLast(block, limit);
      if (last_.node == nullptr) continue;
      block_ = block;
      return block * block_tokens_ + last_.tokens;
    }
    return 0;
  }
  // Returns the path of what Find found last; empty if nothing.
  RestorablePath Path() const {
    RestorablePath path;
    if (last_.node != nullptr) Build(block_, last_, path);
    return path;
  }

 private:
  // The last block of a path, and how many of its tokens the path covers.
  struct Last {
    Node* node = nullptr;
    uint32_t tokens = 0;
  };

  // Returns how many blocks of the walk come before the first that cannot be followed by another:
  // it lacks a full group's page, or a sliding group's page with sinks.
  uint32_t Reach() const {
    const auto size = static_cast<uint32_t>(walk_.path.size());
    for (uint32_t i = 0; i < size; ++i) {
      for (const Usable::Group& group : usable_.groups) {
        const bool always = group.full() || (!group.state() && IsSink(group.rule, i));
        if (always && BestPage(*walk_.path[i], group) == nullptr) return i;
      }
    }
    return size;
  }

  bool IsSink(const GroupRule& rule, uint32_t block) const {
    return uint64_t{block} * block_tokens_ < rule.sink_tokens;
  }
  // Returns the first block that the window before `end` reaches into.
  uint32_t FirstInWindow(const GroupRule& rule, uint32_t end) const {
    return end > rule.window ? (end - rule.window) / block_tokens_ : 0;
  }

  // Returns whether every sliding group has its window's pages in the blocks before `block`, which
  // is the last one.
  bool WindowsHold(uint32_t block, uint32_t end) {
    for (size_t g = 0; g < usable_.groups.size(); ++g) {
      const Usable::Group& group = usable_.groups[g];
      if (group.full() || group.state()) continue;
      const uint32_t first = FirstInWindow(group.rule, end);
      if (gaps_[g] != kNoGap && gaps_[g] >= first && gaps_[g] < block) return false;
      for (uint32_t i = std::min(block, there_from_[g]); i-- > first;) {
        base::CountSteps();
        there_from_[g] = i;
        if (BestPage(*walk_.path[i], group) != nullptr) continue;
        gaps_[g] = i;
        return false;
      }
    }
    return true;
  }

  bool HasKeysAndValues(const Node& node) const {
    return std::ranges::all_of(usable_.groups, [&](const Usable::Group& group) {
      return group.state() || BestPage(node, group) != nullptr;
    });
  }

  // Returns how many of the node's first `shared` tokens a path can cover: all, or up to the last
  // one at which every state group has a snapshot; 0 if there is none.
  uint32_t EndIn(const Node& node, uint32_t shared) const {
    if (!has_state_) return shared;
    const auto first = std::ranges::find_if(usable_.groups, &Usable::Group::state);
    for (auto page = node.pages().rbegin(); page != node.pages().rend(); ++page) {
      if (page->group() != first->group || page->rung() > shared || !Present(*page)) continue;
      const bool all = std::ranges::all_of(usable_.groups, [&](const Usable::Group& group) {
        const Page* const snapshot =
            group.state() ? FindPage(node, group.group, page->rung()) : nullptr;
        return !group.state() || (snapshot != nullptr && Present(*snapshot));
      });
      if (all) return page->rung();
    }
    return 0;
  }

  void Try(Node& node, uint32_t shared, uint32_t block, Last& best) {
    const uint32_t tokens = EndIn(node, shared);
    if (tokens <= best.tokens || !HasKeysAndValues(node)) return;
    if (!WindowsHold(block, block * block_tokens_ + tokens)) return;
    best = {&node, tokens};
  }

  Last BestLast(uint32_t block, uint32_t limit) {
    const uint32_t begin = block * block_tokens_;
    const uint32_t most = std::min(block_tokens_, limit - begin);
    Node* const parent = block == 0 ? Root() : walk_.path[block - 1];
    Last best;
    if (block < walk_.path.size() && parent->children().size() == 1) {
      Try(*walk_.path[block], most, block, best);
      return best;
    }
    const auto size = static_cast<uint32_t>(request_.tokens.size());
    const Slice rest(request_, begin, std::min(size, begin + block_tokens_));
    ByShared siblings(*parent, rest.view());
    while (const auto sibling = siblings.Next()) {
      const uint32_t shared = std::min(sibling->shared, most);
      if (shared <= best.tokens) break;
      Try(*sibling->node, shared, block, best);
    }
    return best;
  }

  Node* Root() const { return walk_.path.empty() ? walk_.last : walk_.path.front()->parent(); }

  bool IsNeeded(const Usable::Group& group, uint32_t block, uint32_t end) const {
    if (group.full()) return true;
    return !group.state() && (IsSink(group.rule, block) || block >= FirstInWindow(group.rule, end));
  }

  void Build(uint32_t block, const Last& last, RestorablePath& found) const {
    found.tokens = block * block_tokens_ + last.tokens;
    found.blocks.assign(walk_.path.begin(), walk_.path.begin() + block);
    found.blocks.push_back(last.node);
    found.pages.reserve(found.blocks.size() * usable_.groups.size());
    for (uint32_t i = 0; i <= block; ++i) {
      for (const Usable::Group& group : usable_.groups) {
        const Page* page = nullptr;
        if (group.state() && i == block) {
          page = FindPage(*found.blocks[i], group.group, last.tokens);
        } else if (IsNeeded(group, i, found.tokens)) {
          page = BestPage(*found.blocks[i], group);
        }
        found.pages.push_back(const_cast<Page*>(page));
      }
    }
  }

  const Walk& walk_;
  const uint32_t block_tokens_;
  const block::SequenceView request_;
  const Usable& usable_;
  bool has_state_ = false;
  uint32_t reach_ = 0;
  // For each group: the block where its page was last found missing, and the first block looked at,
  // so that no block is looked at twice as the search goes down.
  std::vector<uint32_t> gaps_, there_from_;
  uint32_t block_ = 0;
  Last last_;  // of block_; node is null if nothing was found
};

namespace {

// Returns the first group of the kind that allows less than `tokens` together with the full groups
// (a state group: with all groups that are not states); kAllGroups if there is none.
uint32_t Deciding(const Asked& asked, const Walk& walk, const Usable& usable, block::LayerKind kind,
                  uint32_t tokens) {
  const uint32_t block_tokens = asked.space->shape.block_tokens;
  for (const Usable::Group& group : usable.groups) {
    if (group.rule.kind != kind) continue;
    Usable one = kind == block::LayerKind::kState ? WithoutStates(usable) : OnlyFull(usable);
    const auto at = std::ranges::find_if(
        one.groups, [&](const auto& other) { return other.group > group.group; });
    one.groups.insert(at, group);
    if (MixedSearch(walk, block_tokens, asked.request, one).Find(tokens) < tokens) {
      return group.group;
    }
  }
  return block::kAllGroups;
}

// Shortens the answer to what the full groups' pages allow, with the reasons.
void ShortenToFull(const Asked& asked, const Walk& walk, const Usable& full,
                   block::MatchAnswer& answer) {
  if (full.groups.empty()) return;
  const uint32_t block_tokens = asked.space->shape.block_tokens;
  if (full.has_mask) {
    const RestorablePath any = FindRestorable(walk, block_tokens, asked.request, AnyRung(full));
    Shorten(any.tokens, block::ShortenReason::kEvicted, any.missing_group, answer);
  }
  const RestorablePath path = FindRestorable(walk, block_tokens, asked.request, full);
  Shorten(path.tokens,
          full.has_mask ? block::ShortenReason::kFormat : block::ShortenReason::kEvicted,
          path.missing_group, answer);
}

}  // namespace

namespace {

uint32_t FindRight(MixedSearch& search, const Asked& asked, uint32_t tokens, bool causal_content) {
  while (true) {
    const uint32_t found = search.Find(tokens);
    const uint32_t cut = causal_content ? found : CutOutsideContent(asked.request.content, found);
    if (cut >= found) return found;
    tokens = cut;
  }
}

}  // namespace

RestorablePath FindAtMost(const Asked& asked, const Walk& walk, const Usable& usable,
                          uint32_t tokens, bool causal_content) {
  MixedSearch search(walk, asked.space->shape.block_tokens, asked.request, usable);
  FindRight(search, asked, tokens, causal_content);
  return search.Path();
}

RightLengths::RightLengths(const Asked& asked, const Walk& walk, const Usable& usable,
                           uint32_t most, bool causal_content)
    : asked_(&asked), most_(most), causal_content_(causal_content) {
  if (usable.regular) return;
  const uint32_t block_tokens = asked.space->shape.block_tokens;
  search_ = std::make_unique<MixedSearch>(walk, block_tokens, asked.request, usable);
}
RightLengths::~RightLengths() = default;
RightLengths::RightLengths(RightLengths&&) noexcept = default;

uint32_t RightLengths::AtMost(uint32_t tokens) {
  base::CountSteps();
  tokens = std::min(tokens, most_);
  if (search_ != nullptr) return FindRight(*search_, *asked_, tokens, causal_content_);
  return causal_content_ ? tokens : CutOutsideContent(asked_->request.content, tokens);
}

RestorablePath ShortenToMixed(const Asked& asked, const Walk& walk, const Usable& usable,
                              const MatchOptions& options, block::MatchAnswer& answer) {
  ShortenToFull(asked, walk, OnlyFull(usable), answer);
  Shorten(options.max_tokens, block::ShortenReason::kMaxTokens, block::kAllGroups, answer);
  if (!options.causal_content) {
    Shorten(CutOutsideContent(asked.request.content, answer.restorable_tokens),
            block::ShortenReason::kAtomicContent, block::kAllGroups, answer);
  }
  const auto step = [&](const Usable& groups, block::LayerKind kind, block::ShortenReason reason) {
    const uint32_t before = answer.restorable_tokens;
    RestorablePath path = FindAtMost(asked, walk, groups, before, options.causal_content);
    if (path.tokens < before) {
      Shorten(path.tokens, reason, Deciding(asked, walk, groups, kind, before), answer);
    }
    return path;
  };
  const Usable kv = WithoutStates(usable);
  constexpr auto kSliding = block::LayerKind::kSliding;
  RestorablePath path;
  if (!kv.regular && std::ranges::any_of(kv.groups, [](const auto& g) { return !g.full(); })) {
    if (kv.has_mask) step(AnyRung(kv), kSliding, block::ShortenReason::kWindowGone);
    path = step(kv, kSliding,
                kv.has_mask ? block::ShortenReason::kFormat : block::ShortenReason::kWindowGone);
  }
  if (kv.groups.size() < usable.groups.size()) {
    path = step(usable, block::LayerKind::kState, block::ShortenReason::kNoStateSnapshot);
  }
  return path;
}

}  // namespace prefixd::index
