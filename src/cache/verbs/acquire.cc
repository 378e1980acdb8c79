// Acquire: match, lease, and start loading what is not readable yet.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "cache/verbs/lease_answer.h"
#include "cache/verbs/phases.h"
#include "cache/verbs/request.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

// Returns the lease to continue. What a failed page made worthless is given up now: by continuing
// the session says that it reads there no more.
absl::StatusOr<LeasePtr> ToContinue(Context& context, const Sessions& sessions,
                                    const Session& session, const SpaceInfo& space,
                                    const Request& request) {
  if (request.max_tokens < request.continues_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("acquire: max_tokens ", request.max_tokens,
                                                   " is below the ", request.continues_tokens,
                                                   " tokens that the lease covers"));
  }
  PREFIXD_ASSIGN_OR_RETURN(LeasePtr lease, sessions.FindLease(session.id, request.continues));
  LeaseFacts facts = lease->facts();
  if (lease->space == nullptr || lease->space->handle != space.handle ||
      facts.tokens != request.continues_tokens) {
    return absl::NotFoundError(absl::StrCat("acquire: lease ", request.continues.value, " covers ",
                                            facts.tokens, " tokens, not ",
                                            request.continues_tokens));
  }
  if (facts.tokens < facts.leased) {
    PREFIXD_RETURN_IF_ERROR(context.index->ShrinkLease(lease->in_index(), facts.tokens));
    facts.leased = facts.tokens;
    lease->SetFacts(facts);
  }
  return lease;
}

// With sliding groups or states: a shorter hit needs other pages, so shorter leases are tried until
// all that one needs is on its way.
index::Acquired LoadIrregular(Loader& loader, block::SessionId session, const SetMember& alone,
                              index::Acquired held, const Patience& patience) {
  std::vector<index::Acquired> set;
  set.push_back(std::move(held));
  loader.StartAll(session, {&alone, 1}, patience, &set);
  return std::move(set.front());
}

}  // namespace

absl::StatusOr<Acquired> Acquire(Context& context, Tables& tables, Room& room, Loader& loader,
                                 Watcher& watcher, block::SessionId id, const Request& request,
                                 const Patience& patience) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, tables.sessions.Find(id, "acquire"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, tables.spaces.Find(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.readable));
  const index::MatchOptions options = OptionsOf(request, session->slot_number());
  room.KeepLimits();
  LeasePtr continued;
  index::Acquired held;
  bool loads = true;
  Phases phases(context);
  if (request.continues) {
    PREFIXD_ASSIGN_OR_RETURN(continued,
                             ToContinue(context, tables.sessions, *session, *space, request));
    PREFIXD_ASSIGN_OR_RETURN(held,
                             context.index->Extend(continued->in_index(), request.continues_tokens,
                                                   {request.tokens, request.content}, options, id));
  } else {
    if (request.wait_pending.count() > 0) {
      WaitForAnnounced(context, tables.sessions, request, options, *session, patience);
      if (patience.gave_up()) return absl::CancelledError("acquire: the caller gave up");
      phases.times.wait_us = phases.Next();
    }
    const index::SetItem item{request.space, {request.tokens, request.content}, options};
    held = context.index->Acquire(item.space, item.request, item.options, id);
    if (!space->regular) {
      const SetMember alone{.request = &request, .space = space, .item = item};
      held = LoadIrregular(loader, id, alone, std::move(held), patience);
      loads = false;
    }
  }
  phases.times.match_us = phases.Next();
  const uint32_t floor = continued != nullptr ? request.continues_tokens : 0;
  LeaseAnswer answer(&context, session, space, std::move(held), std::move(continued), floor);
  if (loads) {
    PREFIXD_RETURN_IF_ERROR(answer.MakeReadable(loader, request.prefill_tokens_per_s, patience));
  }
  answer.Account(request, tables.advice);
  PREFIXD_ASSIGN_OR_RETURN(Acquired acquired,
                           std::move(answer).Register(tables.sessions, watcher, loader.model,
                                                      request.prefill_tokens_per_s));
  phases.times.room_us = phases.Next();
  Remember(context, tables, *session, *space, request, phases.times, &acquired);
  return acquired;
}

}  // namespace prefixd::cache::verbs
