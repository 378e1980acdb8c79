#include "oracle.h"

namespace prefixd::index {

PrefixSequence::PrefixSequence(const Prefix& prefix) {
  for (uint32_t i = 0; i < prefix.size(); ++i) {
    const Place& place = prefix[i];
    tokens.push_back(place.token);
    if (place.item == 0) continue;
    const bool goes_on =
        i > 0 && prefix[i - 1].item == place.item && prefix[i - 1].position + 1 == place.position;
    if (goes_on) {
      ++content.back().length;
    } else {
      content.push_back({.start = i, .item_offset = place.position, .length = 1, .digest = {}});
      content.back().digest[0] = static_cast<std::byte>(place.item);
    }
  }
}

size_t Common(const Prefix& a, const Prefix& b) {
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  return i;
}

bool ModelBlock::present() const {
  return std::any_of(pages.begin(), pages.end(),
                     [](const auto& page) { return page.second.state != PageState::kGone; });
}

Wanted Oracle::WantedOf(const Selection& selection) const {
  Wanted wanted;
  for (uint32_t group = 0; group < rungs_.size(); ++group) {
    const bool chosen = selection.groups.empty() ||
                        std::count(selection.groups.begin(), selection.groups.end(), group) > 0;
    if (!chosen) continue;
    wanted[group] = (uint64_t{1} << rungs_[group]) - 1;
    if (group < selection.rungs.size()) wanted[group] &= selection.rungs[group];
  }
  return wanted;
}

bool Oracle::Serves(const ModelBlock& block, const Wanted& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const auto& want) {
    return std::any_of(block.pages.begin(), block.pages.end(), [&](const auto& page) {
      return page.first.first == want.first && (want.second >> page.first.second & 1) != 0 &&
             page.second.state != PageState::kGone;
    });
  });
}

BlockPtr Oracle::Find(const Prefix& prefix) const {
  const auto it = blocks_.find(prefix);
  return it == blocks_.end() ? nullptr : it->second;
}

std::vector<BlockPtr> Oracle::Extending(const Prefix& prefix) const {
  std::vector<BlockPtr> found;
  for (auto it = blocks_.lower_bound(prefix); it != blocks_.end(); ++it) {
    if (Common(it->first, prefix) < prefix.size()) break;
    found.push_back(it->second);
  }
  return found;
}

bool Oracle::HasChildren(const ModelBlock& block) const {
  const std::vector<BlockPtr> extending = Extending(block.prefix);
  return block.prefix.size() % block_tokens_ == 0 && extending.size() > 1;
}

bool Oracle::HasRamBelow(const ModelBlock& block) const {
  if (block.prefix.size() % block_tokens_ != 0) return false;
  for (const BlockPtr& below : Extending(block.prefix)) {
    if (below.get() == &block) continue;
    for (const auto& [key, page] : below->pages) {
      if (page.extent) return true;
    }
  }
  return false;
}

bool Oracle::IsPresent(const Prefix& prefix, const Wanted& wanted) const {
  for (const BlockPtr& block : Extending(prefix)) {
    if (BaseOf(block->prefix) == BaseOf(prefix) && Serves(*block, wanted)) return true;
  }
  return false;
}

bool Oracle::InRamUpTo(const Prefix& prefix, size_t base, const Wanted& wanted) const {
  for (const BlockPtr& block : Extending(prefix)) {
    if (BaseOf(block->prefix) != base) continue;
    const bool all = std::all_of(wanted.begin(), wanted.end(), [&](const auto& want) {
      for (const auto& [key, page] : block->pages) {
        if (key.first != want.first || (want.second >> key.second & 1) == 0) continue;
        if (page.state != PageState::kGone) return InRam(page.state);
      }
      return false;
    });
    if (all) return true;
  }
  return false;
}

bool Oracle::SomeExtending(const Prefix& prefix, bool with_pages) const {
  for (const BlockPtr& block : Extending(prefix)) {
    if (BaseOf(block->prefix) == BaseOf(prefix) && (!with_pages || block->present())) return true;
  }
  return false;
}

bool Oracle::Duplicate(const Prefix& prefix, const std::set<PageKey>& pages,
                       bool longer_only) const {
  for (const BlockPtr& block : Extending(prefix)) {
    if (BaseOf(block->prefix) != BaseOf(prefix)) continue;
    if (longer_only && block->prefix.size() == prefix.size()) continue;
    const bool all = std::all_of(pages.begin(), pages.end(), [&](const PageKey& key) {
      const auto it = block->pages.find(key);
      return it != block->pages.end() && it->second.state != PageState::kGone;
    });
    if (all) return true;
  }
  return false;
}

Oracle::Answer Oracle::Match(const Prefix& request, const Wanted& wanted) const {
  Answer answer;
  for (const auto& [prefix, block] : blocks_) {
    const size_t common = Common(prefix, request);
    answer.matched = std::max(answer.matched, static_cast<uint32_t>(common));
    if (common <= BaseOf(prefix) || common <= answer.restorable || !Serves(*block, wanted))
      continue;
    bool path = true;
    for (size_t end = block_tokens_; path && end <= BaseOf(prefix); end += block_tokens_) {
      path = Serves(*Find(Cut(prefix, end)), wanted);
    }
    if (path) answer.restorable = static_cast<uint32_t>(common);
  }
  const Prefix matched = Cut(request, answer.matched);
  if (matched.empty()) {
    if (request.empty()) answer.ended_by = block::EndReason::kRequestEnded;
    return answer;
  }
  bool goes_on = false, hole = true;
  for (const BlockPtr& block : Extending(matched)) {
    if (block->prefix.size() > matched.size()) goes_on = true;
    if (BaseOf(block->prefix) == BaseOf(matched) && block->present()) hole = false;
  }
  for (auto it = ends_.lower_bound(matched); it != ends_.end(); ++it) {
    if (Common(*it, matched) < matched.size()) break;
    if (it->size() > matched.size()) ++answer.diverged;
  }
  const bool ended = ends_.contains(matched) || !goes_on;
  const bool whole = matched.size() == request.size();
  using enum block::MatchKind;
  answer.kind = whole ? (ended ? kExact : kSupersequence) : (ended ? kPrefix : kLcp);
  answer.ended_by = whole     ? block::EndReason::kRequestEnded
                    : hole    ? block::EndReason::kEvicted
                    : goes_on ? block::EndReason::kDiverged
                              : block::EndReason::kNeverStored;
  if (answer.ended_by != block::EndReason::kDiverged) answer.diverged = 0;
  return answer;
}

BlockPtr Oracle::Insert(const Prefix& prefix) {
  BlockPtr& block = blocks_[prefix];
  if (block == nullptr) {
    block = std::make_shared<ModelBlock>();
    block->prefix = prefix;
  }
  return block;
}

void Oracle::Supersede(const BlockPtr& block) {
  const size_t base = BaseOf(block->prefix);
  for (size_t size = block->prefix.size() - 1; size > base; --size) {
    const BlockPtr shorter = Find(Cut(block->prefix, size));
    if (shorter == nullptr) continue;
    const bool covered =
        std::all_of(shorter->pages.begin(), shorter->pages.end(), [&](const auto& page) {
          const auto it = block->pages.find(page.first);
          return page.second.state == PageState::kGone ||
                 (it != block->pages.end() && it->second.state != PageState::kGone);
        });
    if (covered) Remove(shorter);
  }
}

void Oracle::Remove(BlockPtr block) {
  blocks_.erase(block->prefix);
  block->in_tree = false;
  std::erase_if(ends_, [&](const Prefix& end) {
    return Common(end, block->prefix) == end.size() && end.size() > BaseOf(block->prefix) &&
           !SomeExtending(end, false);
  });
  Settle(block);
}

void Oracle::Gone(ModelPage& page) {
  if (page.extent) {
    freed_.insert(page.extent.offset);
    by_extent_.erase(page.extent.offset);
  }
  page.extent = {};
  page.sequence = 0;
  page.state = PageState::kGone;
}

void Oracle::Take(const BlockPtr& block, const PageKey& key, uint32_t slot) {
  ModelPage& page = block->pages.at(key);
  ++page.holders;
  ++block->pins;
  if (slot != block::kNoSlot) page.slots |= uint64_t{1} << slot;
}

void Oracle::Drop(const BlockPtr& block, const PageKey& key) {
  ModelPage& page = block->pages.at(key);
  --block->pins;
  if (--page.holders > 0) return;
  page.slots = 0;
  freed_.insert(page.condemned.begin(), page.condemned.end());
  page.condemned.clear();
}

void Oracle::Settle(BlockPtr block) {
  for (auto& [key, page] : block->pages) {
    const bool busy = page.state == PageState::kSpilling || page.state == PageState::kPromoting;
    if (!block->in_tree && page.holders == 0 && !busy) Gone(page);
  }
  if (!block->in_tree || block->pins > 0 || block->present() || HasChildren(*block)) return;
  const size_t base = BaseOf(block->prefix);
  const Prefix parent = Cut(block->prefix, base);
  Remove(block);
  if (base > 0) Settle(Find(parent));
}

const ModelBlock* Oracle::OwnerOf(const block::Extent& extent) const {
  const auto it = by_extent_.find(extent.offset);
  return it == by_extent_.end() ? nullptr : it->second.first.get();
}

}  // namespace prefixd::index
