// Acquire: match, lease, and start loading what is not readable yet.
#include <algorithm>
#include <utility>

#include "base/status.h"
#include "cache/core.h"
#include "cache/request.h"

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

// What an answer says of its pages, in one pass: there may be many thousands.
struct Listed {
  std::vector<block::LeasedPage> pages;
  LeaseFacts facts;
  bool readable = true;  // all of them, now
};

// Of sliding groups, the blocks of [from, tokens) whose pages the lease does not have.
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

Listed List(const std::vector<index::PageInfo>& pages, uint32_t tokens, bool place) {
  Listed listed;
  listed.pages.reserve(pages.size());
  LeaseFacts& facts = listed.facts;
  facts.tokens = facts.leased = tokens;
  facts.pages = pages.size();
  for (const index::PageInfo& page : pages) {
    listed.pages.push_back(Leased(page, place));
    listed.readable &= listed.pages.back().in_ram;
    (NeedsSsd(page) ? facts.ssd_bytes : facts.ram_bytes) += page.page_bytes;
  }
  if (facts.ssd_bytes == 0) return listed;
  std::map<uint32_t, uint32_t> blocks;  // first token -> tokens
  for (const index::PageInfo& page : pages) {
    if (NeedsSsd(page)) blocks[page.first_token] = page.tokens;
  }
  for (const auto& [first, count] : blocks) facts.ssd_tokens += count;
  return listed;
}

// Of pages that came as a table: all of them in RAM.
Listed ListTable(const index::Acquired& held, uint32_t tokens) {
  return {.pages = {},
          .facts = {.tokens = tokens,
                    .leased = tokens,
                    .ram_bytes = held.answer.ram_bytes,
                    .pages = held.table.offsets.size()}};
}

// Of a lease that was continued.
LeaseFacts Sum(const LeaseFacts& before, const LeaseFacts& more) {
  return {.tokens = more.tokens,
          .leased = more.leased,
          .ssd_tokens = before.ssd_tokens + more.ssd_tokens,
          .ram_bytes = before.ram_bytes + more.ram_bytes,
          .ssd_bytes = before.ssd_bytes + more.ssd_bytes,
          .pages = before.pages + more.pages};
}

// The lease to go on with. What a failed page made worthless is given up now: by asking to go on
// the session says that it reads there no more.
absl::StatusOr<LeasePtr> ToContinue(Core* core, const Session& session, const SpaceInfo& space,
                                    const Request& request) {
  if (request.max_tokens < request.continues_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("acquire: max_tokens ", request.max_tokens,
                                                   " is below the ", request.continues_tokens,
                                                   " tokens that the lease covers"));
  }
  PREFIXD_ASSIGN_OR_RETURN(LeasePtr lease, core->FindLease(session.id, request.continues));
  LeaseFacts facts = lease->facts();
  if (lease->space == nullptr || lease->space->handle != space.handle ||
      facts.tokens != request.continues_tokens) {
    return absl::NotFoundError(absl::StrCat("acquire: lease ", request.continues.value, " covers ",
                                            facts.tokens, " tokens, not ",
                                            request.continues_tokens));
  }
  if (facts.tokens < facts.leased) {
    PREFIXD_RETURN_IF_ERROR(core->index->ShrinkLease(lease->in_index(), facts.tokens));
    facts.leased = facts.tokens;
    lease->SetFacts(facts);
  }
  return lease;
}

}  // namespace

void WaitForAnnounced(Core* core, const Request& request, const index::MatchOptions& options,
                      const Session& session, const Patience& patience) {
  const auto begun = std::chrono::steady_clock::now();
  const Patience waiting = patience.Before(begun + request.wait_pending);
  const auto announcements = [core] {
    base::MutexLock lock(core->announce_mutex);
    return core->announcements;
  };
  bool waited = false;
  const auto goes_on = [&] { return !waiting.over() && !session.over.load(); };
  while (goes_on()) {
    core->EndIdleReservations();
    const uint64_t seen = announcements();
    const block::MatchAnswer match =
        core->index->Match(request.space, {request.tokens, request.content}, options, session.id);
    if (match.pending_tokens == 0) break;
    waited = true;
    base::MutexLock lock(core->announce_mutex);
    while (core->announcements == seen && goes_on()) {
      core->announced.WaitUntil(core->announce_mutex, waiting.next_look());
    }
  }
  if (!waited) return;
  core->counters.Add("waits.pending");
  const auto passed = std::chrono::steady_clock::now() - begun;
  core->counters.Time(
      "wait_pending",
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(passed).count()));
}

absl::StatusOr<Acquired> Cache::Acquire(block::SessionId id, const Request& request,
                                        const Patience& patience) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, core_->FindSession(id, "acquire"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, core_->FindSpace(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.readable));
  const index::MatchOptions options = OptionsOf(request, session->slot_number());
  core_->KeepLimits();
  LeasePtr continued;
  index::Acquired held;
  std::optional<Patience> load_until = patience;
  Phases phases(core_.get());
  if (request.continues) {
    PREFIXD_ASSIGN_OR_RETURN(continued, ToContinue(core_.get(), *session, *space, request));
    PREFIXD_ASSIGN_OR_RETURN(held,
                             core_->index->Extend(continued->in_index(), request.continues_tokens,
                                                  {request.tokens, request.content}, options, id));
  } else {
    if (request.wait_pending.count() > 0) {
      WaitForAnnounced(core_.get(), request, options, *session, patience);
      if (patience.gave_up()) return absl::CancelledError("acquire: the caller gave up");
      phases.times.wait_us = phases.Next();
    }
    const index::SetItem item{request.space, {request.tokens, request.content}, options};
    held = core_->index->Acquire(item.space, item.request, item.options, id);
    if (!space->regular) {
      const Core::Member alone{.request = &request, .space = space, .item = item};
      std::vector<index::Acquired> set;
      set.push_back(std::move(held));
      core_->StartAll(*session, {&alone, 1}, patience, &set);
      held = std::move(set.front());
      load_until.reset();
    }
  }
  phases.times.match_us = phases.Next();
  const uint32_t floor = continued != nullptr ? request.continues_tokens : 0;
  PREFIXD_ASSIGN_OR_RETURN(Acquired acquired,
                           core_->Answer(session, space, std::move(held), request, floor,
                                         std::move(continued), load_until));
  phases.times.room_us = phases.Next();
  core_->Remember(*session, *space, request, phases.times, &acquired);
  return acquired;
}

absl::StatusOr<Acquired> Core::Answer(const SessionPtr& session, const SpacePtr& space,
                                      index::Acquired held, const Request& request, uint32_t floor,
                                      LeasePtr lease, std::optional<Patience> load_until) {
  const bool continued = lease != nullptr;
  if (!continued && held.lease) {
    lease = std::make_shared<Lease>(this, held.lease, session->slot);
    lease->space = space;
    lease->begun_us = Now();
  }
  const bool place = session->slot != nullptr;
  const uint32_t leased = held.answer.restorable_tokens;
  uint32_t tokens = std::max(leased, floor);
  const bool in_table = !held.table.groups.empty();
  Listed listed = in_table ? ListTable(held, tokens) : List(held.pages, tokens, place);
  const bool readable = listed.readable;
  if (!readable && load_until.has_value()) {
    if (request.prefill_tokens_per_s > 0 && space->regular) {
      CutWhatDoesNotPay(space->identity.block_tokens, request.prefill_tokens_per_s, floor,
                        {&held, 1});
    }
    StartLoading(*space, floor, *load_until, &held);
    tokens = std::max(held.answer.restorable_tokens, floor);
    if (!space->regular && tokens < leased) {  // what is shorter needs other pages
      held.answer.shortened_by.back().tokens_lost += tokens;
      tokens = 0;
    }
    if (tokens < leased) {
      if (tokens > 0) PREFIXD_RETURN_IF_ERROR(index->ShrinkLease(lease->in_index(), tokens));
      CutPages(tokens, &held.pages);
    }
    listed = List(held.pages, tokens, place);
  }
  held.answer.restorable_tokens = tokens;
  const LeaseFacts& facts = listed.facts;
  held.answer.ram_bytes = facts.ram_bytes;
  held.answer.ssd_bytes = facts.ssd_bytes;
  held.answer.load_us = load_model.EstimateMicros(facts.ram_bytes, facts.ssd_bytes);
  if (!request.tokens.empty()) {  // not of a Join
    const uint32_t from_ssd = std::min(facts.ssd_tokens, tokens - floor);
    CountMatch(held.answer, request.tokens.size());
    CountGivenUp(request, held.answer);
    asked_bytes += facts.ram_bytes + facts.ssd_bytes;
    counters.AddAll({{"tokens.restorable.ssd", from_ssd},
                     {"tokens.restorable.ram", tokens - floor - from_ssd}});
  }

  Acquired acquired;
  acquired.match = std::move(held.answer);
  if (tokens == 0) return acquired;
  acquired.lease = PublicId(lease->in_index());
  lease->prefill_rate = request.prefill_tokens_per_s;
  uint32_t first_token = floor;
  if (in_table) first_token = held.table.first_token;
  if (!held.pages.empty()) first_token = held.pages.front().first_token;
  if (!space->regular) {
    first_token = held.from_token;
    AddAbsent(*space, first_token, tokens, &listed.pages);
  }
  acquired.first_block = first_token / space->identity.block_tokens;
  acquired.pages = std::move(listed.pages);
  acquired.table = std::move(held.table);
  lease->SetFacts(continued ? Sum(lease->facts(), facts) : facts);
  if (!continued) PREFIXD_RETURN_IF_ERROR(Register(session, acquired.lease, lease));
  if (place && !readable) {
    std::erase_if(held.pages, [](const index::PageInfo& page) { return index::InRam(page.state); });
    AddWatch(
        {.session = session, .lease = lease, .id = acquired.lease, .pages = std::move(held.pages)});
  }
  return acquired;
}

}  // namespace prefixd::cache
