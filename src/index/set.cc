// Several requests with one length: a model's ranks, a draft beside its target.
#include <algorithm>

#include "index/impl.h"

namespace prefixd::index {
namespace {

MatchOptions AtMost(const MatchOptions& options, uint32_t tokens) {
  MatchOptions cut = options;
  cut.max_tokens = std::min(cut.max_tokens, tokens);
  return cut;
}

// An item's own answer, cut: where the pages stand is said by the answer to a request of so many
// tokens.
void CutAnswer(uint32_t to, block::ShortenReason reason, const block::MatchAnswer& cut,
               block::MatchAnswer& own) {
  if (own.restorable_tokens <= to) return;
  Shorten(to, reason, block::kAllGroups, own);
  own.pending_tokens = 0;
  own.ram_bytes = cut.ram_bytes;
  own.ssd_bytes = cut.ssd_bytes;
}

}  // namespace

// Each step asks every item for its longest length of at most what the one before it has: no length
// that is right for all is passed over.
PrefixIndex::Impl::SetMatch PrefixIndex::Impl::MatchSet(std::span<const SetItem> items,
                                                        uint32_t most,
                                                        std::vector<block::MatchAnswer> known,
                                                        block::SessionId session) const {
  SetMatch found{.tokens = most, .answers = std::move(known)};
  found.answers.resize(items.size());
  size_t agreed = 0;  // items in a row that have found.tokens
  for (size_t i = 0; agreed < items.size(); i = (i + 1) % items.size()) {
    block::MatchAnswer& answer = found.answers[i];
    const bool asked = answer.matched_tokens > 0 && answer.restorable_tokens <= found.tokens;
    if (!asked) {
      answer =
          Match(items[i].space, items[i].request, AtMost(items[i].options, found.tokens), session);
    }
    ++agreed;
    if (answer.restorable_tokens < found.tokens) {
      found.tokens = answer.restorable_tokens;
      agreed = 1;
    }
  }
  return found;
}

bool PrefixIndex::Impl::HoldSet(std::span<const SetItem> items, uint32_t tokens,
                                block::SessionId session, std::vector<Acquired>& set) {
  set.clear();
  for (const SetItem& item : items) {
    set.push_back(Acquire(item.space, item.request, AtMost(item.options, tokens), session));
    if (set.back().answer.restorable_tokens == tokens) continue;
    for (const Acquired& held : set) EndLease(held.lease).IgnoreError();  // or it has none
    set.assign(items.size(), {});
    return false;
  }
  return true;
}

uint32_t PrefixIndex::Impl::MostWithinQuotas(std::span<const SetItem> items, uint32_t too_much,
                                             block::SessionId session) {
  uint32_t best = 0;
  for (uint32_t holds = 0; too_much - holds > 1;) {
    const uint32_t middle = holds + (too_much - holds) / 2;
    const uint32_t tokens = MatchSet(items, middle, {}, session).tokens;
    std::vector<Acquired> set;
    if (!HoldSet(items, tokens, session, set)) {
      too_much = middle;
      continue;
    }
    for (const Acquired& held : set) EndLease(held.lease).IgnoreError();  // none of 0 tokens
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
  const Impl::SetMatch common = impl_->MatchSet(items, block::kNoLimit, own, session);
  for (size_t i = 0; i < items.size(); ++i) {
    CutAnswer(common.tokens, block::ShortenReason::kCommonLength, common.answers[i], own[i]);
  }
  return own;
}

std::vector<Acquired> PrefixIndex::AcquireSet(std::span<const SetItem> items,
                                              block::SessionId session) {
  const base::MutexLock lock(impl_->mutex);
  std::vector<block::MatchAnswer> own = impl_->OwnAnswers(items, session);
  Impl::SetMatch common = impl_->MatchSet(items, block::kNoLimit, own, session);
  for (size_t i = 0; i < items.size(); ++i) {
    CutAnswer(common.tokens, block::ShortenReason::kCommonLength, common.answers[i], own[i]);
  }
  std::vector<Acquired> set;
  if (!impl_->HoldSet(items, common.tokens, session, set)) {
    const uint32_t fits = impl_->MostWithinQuotas(items, common.tokens, session);
    common = impl_->MatchSet(items, fits, {}, session);
    impl_->HoldSet(items, fits, session, set);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    CutAnswer(common.tokens, block::ShortenReason::kLeaseQuota, common.answers[i], own[i]);
    set[i].answer = std::move(own[i]);
  }
  return set;
}

}  // namespace prefixd::index
