#include "index/restorable.h"

#include <algorithm>

namespace prefixd::index {
namespace {

uint32_t MissingGroup(const Node& node, const Usable& usable) {
  uint32_t missing = block::kAllGroups;
  size_t count = 0;
  for (const Usable::Group& group : usable.groups) {
    if (BestPage(node, group) != nullptr) continue;
    if (count++ == 0) missing = group.group;
  }
  return count == usable.groups.size() ? block::kAllGroups : missing;
}

}  // namespace

RestorablePath FindRestorable(const Walk& walk, uint32_t block_tokens,
                              const block::SequenceView& request, const Usable& usable) {
  RestorablePath found;
  const Node* parent = walk.last;
  for (Node* const node : walk.path) {
    if (!Serves(*node, usable)) {
      found.missing_group = MissingGroup(*node, usable);
      parent = node->parent;
      break;
    }
    found.blocks.push_back(node);
    found.tokens += block_tokens;
  }
  const auto size = static_cast<uint32_t>(request.tokens.size());
  if (found.tokens == size) return found;
  const Slice rest(request, found.tokens, std::min(size, found.tokens + block_tokens));
  ByShared siblings(*parent, rest.view());
  bool first = true;
  while (const auto sibling = siblings.Next()) {
    if (Serves(*sibling->node, usable)) {
      found.blocks.push_back(sibling->node);
      found.tokens += sibling->shared;
      break;
    }
    if (first) found.missing_group = MissingGroup(*sibling->node, usable);
    first = false;
  }
  return found;
}

void Shorten(uint32_t to, block::ShortenReason reason, uint32_t group, block::MatchAnswer& answer) {
  if (to >= answer.restorable_tokens) return;
  answer.shortened_by.push_back(
      {.group = group, .reason = reason, .tokens_lost = answer.restorable_tokens - to});
  answer.restorable_tokens = to;
}

void ShortenToQuota(uint32_t to, const block::SequenceView& request, const RestorablePath& path,
                    const Usable& usable, const MatchOptions& options, block::MatchAnswer& answer) {
  if (to >= answer.restorable_tokens) return;
  Shorten(to, block::ShortenReason::kLeaseQuota, block::kAllGroups, answer);
  if (!options.causal_content) {
    Shorten(CutOutsideContent(request, to), block::ShortenReason::kAtomicContent, block::kAllGroups,
            answer);
  }
  answer.pending_tokens = 0;
  CountTiers(path, usable, answer);
}

void CountTiers(const RestorablePath& path, const Usable& usable, block::MatchAnswer& answer) {
  answer.ram_bytes = answer.ssd_bytes = 0;
  for (const Node* const node : path.blocks) {
    if (node->first_token >= answer.restorable_tokens) return;
    for (const Usable::Group& group : usable.groups) {
      const Page& page = *BestPage(*node, group);
      (InRam(page.state) ? answer.ram_bytes : answer.ssd_bytes) += page.page_bytes;
    }
  }
}

uint32_t CutOutsideContent(const block::SequenceView& request, uint32_t tokens) {
  const auto after = std::upper_bound(
      request.content.begin(), request.content.end(), tokens,
      [](uint32_t position, const block::ContentKey& key) { return position <= key.start; });
  if (after == request.content.begin()) return tokens;
  const block::ContentKey& key = *std::prev(after);
  return tokens < uint64_t{key.start} + key.length ? key.start : tokens;
}

}  // namespace prefixd::index
