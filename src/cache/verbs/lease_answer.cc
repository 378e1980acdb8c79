#include "cache/verbs/lease_answer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/status.h"
#include "cache/counting.h"

namespace prefixd::cache {
namespace {

void CutPages(uint32_t tokens, std::vector<index::PageInfo>* pages) {
  std::erase_if(*pages,
                [tokens](const index::PageInfo& page) { return page.first_token >= tokens; });
  for (index::PageInfo& page : *pages) {
    page.tokens = std::min(page.tokens, tokens - page.first_token);
  }
}

// `place`: the session may be told where the page stands.
block::LeasedPage Leased(const index::PageInfo& page, bool place) {
  return {.group = page.ref.group,
          .rung = page.ref.rung,
          .first_token = page.first_token,
          .page_tokens = page.name.tokens,
          .tokens = page.tokens,
          .in_ram = index::InRam(page.state),
          .offset = place && page.extent ? page.extent.offset : block::kNoOffset};
}

// Adds, for sliding groups, the blocks of [from, tokens) whose pages the lease does not have.
void AddAbsent(const SpaceInfo& space, uint32_t from, uint32_t tokens,
               std::vector<block::LeasedPage>* pages) {
  const uint32_t block_tokens = space.identity.block_tokens;
  std::vector<block::LeasedPage> all;
  const auto fill = [&](uint32_t group, uint32_t* next, uint32_t end) {
    for (; *next < end; *next += block_tokens) {
      all.push_back({.group = group,
                     .rung = block::kNoLimit,
                     .first_token = *next,
                     .page_tokens = 0,
                     .tokens = std::min(block_tokens, tokens - *next),
                     .in_ram = true});
    }
  };
  for (auto page = pages->begin(); page != pages->end();) {
    const uint32_t group = page->group;
    const bool sliding = space.identity.groups[group].kind == block::LayerKind::kSliding;
    uint32_t next = from;
    for (; page != pages->end() && page->group == group; ++page) {
      if (sliding) fill(group, &next, page->first_token);
      all.push_back(*page);
      next = page->first_token + block_tokens;
    }
    if (sliding) fill(group, &next, tokens);
  }
  *pages = std::move(all);
}

// What was given up is advice to write new blocks coarser.
void CountGivenUp(const Request& request, const block::MatchAnswer& answer, Context* context,
                  FormatAdvice& advice) {
  if (!advice.rules().on_misses) return;
  uint64_t given_up = 0;
  for (const block::Shortening& shortening : answer.shortened_by) {
    if (shortening.reason == block::ShortenReason::kEvicted) given_up += shortening.tokens_lost;
  }
  if (answer.ended_by == block::EndReason::kEvicted) {
    given_up += context->index->GhostTokens(request.space, {request.tokens, request.content});
  }
  if (given_up > 0) context->counters.Add("tokens.given_up", given_up);
  advice.CountRequest(request.tokens.size(), given_up);
}

}  // namespace

LeaseAnswer::LeaseAnswer(Context* context, SessionPtr session, SpacePtr space, index::Acquired held)
    : context_(context),
      session_(std::move(session)),
      space_(std::move(space)),
      held_(std::move(held)) {
  if (held_.lease) {
    lease_ = std::make_shared<Lease>(context_, held_.lease, session_->slot);
    lease_->space = space_;
    lease_->begun_us = context_->Now();
  }
  tokens_ = held_.answer.restorable_tokens;
  List();
  readable_ = std::ranges::all_of(pages_, &block::LeasedPage::in_ram);
}

// In one pass: there may be many thousands of pages. Those that came as a table are all in RAM.
void LeaseAnswer::List() {
  facts_ = {.tokens = tokens_, .pages = held_.pages.size()};
  pages_.clear();
  if (!held_.table.groups.empty()) {
    facts_.ram_bytes = held_.answer.ram_bytes;
    facts_.pages = held_.table.offsets.size();
    return;
  }
  pages_.reserve(held_.pages.size());
  std::map<uint32_t, uint32_t> ssd_blocks, far_blocks;  // first token -> tokens
  for (const index::PageInfo& page : held_.pages) {
    pages_.push_back(Leased(page, place()));
    const bool ssd = NeedsSsd(page), far = NeedsFar(page);
    (ssd ? facts_.ssd_bytes : far ? facts_.far_bytes : facts_.ram_bytes) += page.page_bytes;
    if (ssd) ssd_blocks[page.first_token] = page.tokens;
    if (far) far_blocks[page.first_token] = page.tokens;
  }
  for (const auto& [first, count] : ssd_blocks) {
    if (!far_blocks.contains(first)) facts_.ssd_tokens += count;
  }
  for (const auto& [first, count] : far_blocks) facts_.far_tokens += count;
}

absl::Status LeaseAnswer::MakeReadable(Loader& loader, double prefill_tokens_per_s,
                                       const Patience& patience) {
  if (readable_) return absl::OkStatus();
  const uint32_t leased = held_.answer.restorable_tokens;
  if (prefill_tokens_per_s > 0 && space_->regular) {
    loader.CutWhatDoesNotPay(space_->identity.block_tokens, prefill_tokens_per_s, {&held_, 1});
  }
  loader.Start(*space_, patience, &held_);
  tokens_ = held_.answer.restorable_tokens;
  if (!space_->regular && tokens_ < leased) {  // a shorter prefix needs other pages
    held_.answer.shortened_by.back().tokens_lost += tokens_;
    tokens_ = 0;
  }
  if (tokens_ < leased) {
    if (tokens_ > 0) {
      PREFIXD_RETURN_IF_ERROR(context_->index->ShrinkLease(lease_->in_index(), tokens_));
    }
    CutPages(tokens_, &held_.pages);
  }
  List();
  return absl::OkStatus();
}

void LeaseAnswer::Account(const Request& request, FormatAdvice& advice) {
  held_.answer.restorable_tokens = tokens_;
  const uint32_t from_far = std::min(facts_.far_tokens, tokens_);
  const uint32_t from_ssd = std::min(facts_.ssd_tokens, tokens_ - from_far);
  CountMatch(held_.answer, request.tokens.size(), &context_->counters);
  CountGivenUp(request, held_.answer, context_, advice);
  context_->CountAsked(facts_.ram_bytes + facts_.ssd_bytes + facts_.far_bytes);
  const uint32_t from_ram = tokens_ - from_ssd - from_far;
  context_->counters.AddAll({{"tokens.restorable.ssd", from_ssd},
                             {"tokens.restorable.remote", from_far},
                             {"tokens.restorable.ram", from_ram}});
  space_->tokens.CountLookup(request.tokens.size(), held_.answer.matched_tokens,
                             {.ram = from_ram, .ssd = from_ssd, .remote = from_far});
}

absl::StatusOr<Acquired> LeaseAnswer::Register(Sessions& sessions, Watcher& watcher,
                                               const LoadModel& model,
                                               double prefill_tokens_per_s) && {
  held_.answer.restorable_tokens = tokens_;
  held_.answer.ram_bytes = facts_.ram_bytes;
  held_.answer.ssd_bytes = facts_.ssd_bytes;
  held_.answer.remote_bytes = facts_.far_bytes;
  held_.answer.load_us = model.EstimateMicros(facts_.ram_bytes, facts_.ssd_bytes, facts_.far_bytes);
  Acquired acquired;
  acquired.match = std::move(held_.answer);
  if (tokens_ == 0) return acquired;
  acquired.lease = context_->PublicId(lease_->in_index());
  lease_->prefill_rate = prefill_tokens_per_s;
  lease_->last_full = held_.last_full;
  if (!space_->regular) AddAbsent(*space_, held_.from_token, tokens_, &pages_);
  acquired.first_block = held_.from_token / space_->identity.block_tokens;
  acquired.pages = std::move(pages_);
  acquired.table = std::move(held_.table);
  lease_->SetFacts(facts_);
  PREFIXD_RETURN_IF_ERROR(sessions.AddLease(session_, acquired.lease, lease_));
  if (place() && !readable_) {
    std::erase_if(held_.pages,
                  [](const index::PageInfo& page) { return index::InRam(page.state); });
    watcher.Add({.session = session_,
                 .lease = lease_,
                 .id = acquired.lease,
                 .pages = std::move(held_.pages)});
  }
  return acquired;
}

}  // namespace prefixd::cache
