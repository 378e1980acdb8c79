#include "index/restorable.h"

#include <algorithm>

#include "index/node_pool.h"

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

[[gnu::always_inline]] inline void AskForUses(const Node& node) {
  for (const Page& page : node.pages()) page.AskForUse();
}

// Adds the block and its pages to `found`. Returns false, with nothing added, if it does not serve.
bool Take(Node& node, const Usable& usable, RestorablePath& found) {
  if (usable.groups.empty()) return false;
  const size_t before = found.pages.size();
  Page* page = node.pages().data();
  Page* const end = page + node.pages().size();
  for (const Usable::Group& group : usable.groups) {  // both ascend
    while (page != end && (page->group() < group.group ||
                           (page->group() == group.group && !IsUsable(*page, group)))) {
      ++page;
    }
    if (page == end || page->group() != group.group) {
      found.pages.resize(before);
      return false;
    }
    found.pages.push_back(page);
  }
  found.blocks.push_back(&node);
  return true;
}

}  // namespace

size_t BlocksBefore(const RestorablePath& path, uint32_t tokens) {
  return static_cast<size_t>(
      std::partition_point(path.blocks.begin(), path.blocks.end(),
                           [&](const Node* node) { return node->first_token() < tokens; }) -
      path.blocks.begin());
}

RestorablePath FindRestorable(const Walk& walk, uint32_t block_tokens,
                              const block::SequenceView& request, const Usable& usable) {
  RestorablePath found;
  found.blocks.reserve(walk.path.size() + 1);
  found.pages.reserve((walk.path.size() + 1) * usable.groups.size());
  const Node* parent = walk.last;
  for (size_t i = 0; i < walk.path.size(); ++i) {
    Node* const node = walk.path[i];
    if (i + 1 < walk.path.size()) AskForUses(*walk.path[i + 1]);
    if (!Take(*node, usable, found)) {
      found.missing_group = MissingGroup(*node, usable);
      parent = node->parent();
      break;
    }
    found.tokens += block_tokens;
  }
  const auto size = static_cast<uint32_t>(request.tokens.size());
  if (found.tokens == size) return found;
  const Slice rest(request, found.tokens, std::min(size, found.tokens + block_tokens));
  ByShared siblings(*parent, rest.view());
  bool first = true;
  while (const auto sibling = siblings.Next()) {
    if (Take(*sibling->node, usable, found)) {
      found.tokens += sibling->shared;
      break;
    }
    if (first) found.missing_group = MissingGroup(*sibling->node, usable);
    first = false;
  }
  return found;
}

uint32_t CutOutsideContent(std::span<const block::ContentKey> content, uint32_t tokens) {
  const auto after = std::upper_bound(
      content.begin(), content.end(), tokens,
      [](uint32_t position, const block::ContentKey& key) { return position <= key.start; });
  if (after == content.begin()) return tokens;
  const block::ContentKey& key = *std::prev(after);
  return tokens < uint64_t{key.start} + key.length ? key.start : tokens;
}

void Shorten(uint32_t to, block::ShortenReason reason, uint32_t group, block::MatchAnswer& answer) {
  if (to >= answer.restorable_tokens) return;
  answer.shortened_by.push_back(
      {.group = group, .reason = reason, .tokens_lost = answer.restorable_tokens - to});
  answer.restorable_tokens = to;
}

void ShortenToQuota(uint32_t to, const Asked& asked, const RestorablePath& path,
                    const MatchOptions& options, block::MatchAnswer& answer) {
  if (to >= answer.restorable_tokens) return;
  Shorten(to, block::ShortenReason::kLeaseQuota, block::kAllGroups, answer);
  if (!options.causal_content) {
    Shorten(CutOutsideContent(asked.request.content, to), block::ShortenReason::kAtomicContent,
            block::kAllGroups, answer);
  }
  answer.pending_tokens = 0;
  CountTiers(path, answer);
}

void CountTiers(const RestorablePath& path, block::MatchAnswer& answer) {
  answer.ram_bytes = answer.ssd_bytes = 0;
  if (path.blocks.empty()) return;
  const size_t groups = path.pages.size() / path.blocks.size();
  for (size_t block = 0; block < path.blocks.size(); ++block) {
    const Node& node = *path.blocks[block];
    if (node.first_token() >= answer.restorable_tokens) return;
    const PageSizes& sizes = node.space()->sizes;
    for (size_t i = block * groups; i < (block + 1) * groups; ++i) {
      if (path.pages[i] == nullptr) continue;
      const Page& page = *path.pages[i];
      (page.has_extent() ? answer.ram_bytes : answer.ssd_bytes) +=
          sizes.At(page.sizes()).page_bytes;
    }
  }
}

}  // namespace prefixd::index
