// Sets: several requests that get one length, as of a model's ranks or a draft beside its target.
#include <algorithm>

#include "index/impl.h"

namespace prefixd::index {
namespace {

MatchOptions AtMost(const MatchOptions& options, uint32_t tokens) {
  MatchOptions cut = options;
  cut.max_tokens = std::min(cut.max_tokens, tokens);
  return cut;
}

// Cuts an item's own answer to `to` tokens. `cut`, the answer to a request of at most so many
// tokens, gives the bytes per tier.
void CutAnswer(uint32_t to, block::ShortenReason reason, const block::MatchAnswer& cut,
               block::MatchAnswer& own) {
  if (own.restorable_tokens <= to) return;
  Shorten(to, reason, block::kAllGroups, own);
  own.pending_tokens = 0;
  own.ram_bytes = cut.ram_bytes;
  own.ssd_bytes = cut.ssd_bytes;
}

}  // namespace

std::vector<PrefixIndex::Impl::Member> PrefixIndex::Impl::MembersOf(
    std::span<const SetItem> items, std::span<const block::MatchAnswer> own) const {
  std::vector<Member> members(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    members[i].own = own[i].restorable_tokens;
    if (members[i].own == 0) continue;
    Space& space = *FindSpace(items[i].space);
    members[i].asked = {&space, items[i].request};
    members[i].usable = UsableOf(space.shape, items[i].options.selection);
    members[i].causal_content = items[i].options.causal_content;
    if (members[i].usable.regular) continue;
    members[i].walk = WalkDown(space.root, space.shape.block_tokens, items[i].request);
  }
  return members;
}

// Each step asks a member for its longest length of at most what the member before it has. So no
// length that all members have is passed over, and none is looked at twice.
uint32_t PrefixIndex::Impl::CommonLength(std::span<const Member> members, uint32_t most) {
  for (const Member& member : members) most = std::min(most, member.own);
  if (most == 0) return 0;
  std::vector<RightLengths> lengths;
  for (const Member& member : members) {
    lengths.emplace_back(member.asked, member.walk, member.usable, member.own,
                         member.causal_content);
  }
  size_t agreed = 0;  // members in a row for which `most` is restorable
  for (size_t i = 0; agreed < lengths.size(); i = (i + 1) % lengths.size()) {
    const uint32_t longest = lengths[i].AtMost(most);
    agreed = longest < most ? 1 : agreed + 1;
    most = longest;
  }
  return most;
}

void PrefixIndex::Impl::CutAnswers(std::span<const SetItem> items, uint32_t to,
                                   block::ShortenReason reason, block::SessionId session,
                                   std::vector<block::MatchAnswer>& own) const {
  for (size_t i = 0; i < items.size(); ++i) {
    if (own[i].restorable_tokens <= to) continue;
    const MatchOptions options = AtMost(items[i].options, to);
    CutAnswer(to, reason, Match(items[i].space, items[i].request, options, session), own[i]);
  }
}

bool PrefixIndex::Impl::HoldSet(std::span<const SetItem> items, uint32_t tokens,
                                block::SessionId session, std::vector<Acquired>& set) {
  set.clear();
  for (const SetItem& item : items) {
    set.push_back(Acquire(item.space, item.request, AtMost(item.options, tokens), session));
    if (set.back().answer.restorable_tokens == tokens) continue;
    for (const Acquired& held : set) EndLease(held.lease).IgnoreError();  // NotFound if it has none
    set.assign(items.size(), {});
    return false;
  }
  return true;
}

uint32_t PrefixIndex::Impl::MostWithinQuotas(std::span<const SetItem> items,
                                             std::span<const Member> members, uint32_t too_much,
                                             block::SessionId session) {
  uint32_t best = 0;
  for (uint32_t holds = 0; too_much - holds > 1;) {
    const uint32_t middle = holds + (too_much - holds) / 2;
    const uint32_t tokens = CommonLength(members, middle);
    if (tokens == best) {  // the length is known to fit
      holds = middle;
      continue;
    }
    std::vector<Acquired> set;
    if (!HoldSet(items, tokens, session, set)) {
      too_much = tokens;
      continue;
    }
    for (const Acquired& held : set) EndLease(held.lease).IgnoreError();  // NotFound at 0 tokens
    best = tokens;
    holds = middle;
  }
  return best;
}

std::vector<block::MatchAnswer> PrefixIndex::Impl::OwnAnswers(std::span<const SetItem> items,
                                                              block::SessionId session) const {
  std::vector<block::MatchAnswer> own;
  for (const SetItem& item : items) {
    own.push_back(Match(item.space, item.request, item.options, session));
  }
  return own;
}

std::vector<block::MatchAnswer> PrefixIndex::MatchSet(std::span<const SetItem> items,
                                                      block::SessionId session) const {
  const base::MutexLock lock(impl_->mutex);
  std::vector<block::MatchAnswer> own = impl_->OwnAnswers(items, session);
  const uint32_t common = Impl::CommonLength(impl_->MembersOf(items, own), block::kNoLimit);
  impl_->CutAnswers(items, common, block::ShortenReason::kCommonLength, session, own);
  return own;
}

std::vector<Acquired> PrefixIndex::AcquireSet(std::span<const SetItem> items,
                                              block::SessionId session) {
  const base::MutexLock lock(impl_->mutex);
  std::vector<block::MatchAnswer> own = impl_->OwnAnswers(items, session);
  const std::vector<Impl::Member> members = impl_->MembersOf(items, own);
  const uint32_t common = Impl::CommonLength(members, block::kNoLimit);
  impl_->CutAnswers(items, common, block::ShortenReason::kCommonLength, session, own);
  std::vector<Acquired> set;
  if (!impl_->HoldSet(items, common, session, set)) {
    const uint32_t fits = impl_->MostWithinQuotas(items, members, common, session);
    impl_->CutAnswers(items, fits, block::ShortenReason::kLeaseQuota, session, own);
    impl_->HoldSet(items, fits, session, set);
  }
  for (size_t i = 0; i < items.size(); ++i) set[i].answer = std::move(own[i]);
  impl_->NoteMemory();
  return set;
}

}  // namespace prefixd::index
