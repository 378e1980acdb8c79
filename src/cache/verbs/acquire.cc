// Acquire: match, lease, and start loading what is not readable yet.
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cache/verbs/lease_answer.h"
#include "cache/verbs/phases.h"
#include "cache/verbs/request.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

// With sliding groups or states: a shorter hit needs other pages, so shorter leases are tried until
// all that one needs is on its way.
index::Acquired LoadIrregular(Loader& loader, block::SessionId session, const SetMember& alone,
                              index::Acquired held, const Patience& patience) {
  std::vector<index::Acquired> set;
  set.push_back(std::move(held));
  loader.StartAll(session, {&alone, 1}, patience, &set);
  return std::move(set.front());
}

// Returns false, with nothing held or counted, if `far` may have more. Null: it is not asked.
absl::StatusOr<bool> AcquireInto(Context& context, Tables& tables, Room& room, Loader& loader,
                                 Watcher& watcher, const Far* far, block::SessionId id,
                                 const Request& request, const Patience& patience,
                                 Acquired* acquired) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, tables.sessions.Find(id, "acquire"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, tables.spaces.Find(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.readable));
  const index::MatchOptions options = OptionsOf(request, session->slot_number());
  room.KeepLimits();
  room.FitIndexForLeases();
  Phases phases(context);
  if (request.wait_pending.count() > 0) {
    WaitForAnnounced(context, tables.sessions, request, options, *session, patience);
    if (patience.gave_up()) return absl::CancelledError("acquire: the caller gave up");
    phases.times.wait_us = phases.Next();
  }
  const index::SetItem item{request.space, {request.tokens, request.content}, options};
  index::Acquired held = context.index->Acquire(item.space, item.request, item.options, id);
  if (far != nullptr && FallsShort(*far, *space, request, held.answer)) {
    if (held.lease) context.index->Release(held.lease).IgnoreError();  // known: it is ours alone
    return false;
  }
  if (!space->regular) {
    const SetMember alone{.request = &request, .space = space, .item = item};
    held = LoadIrregular(loader, id, alone, std::move(held), patience);
  }
  phases.times.match_us = phases.Next();
  LeaseAnswer answer(&context, session, space, std::move(held));
  if (space->regular) {
    PREFIXD_RETURN_IF_ERROR(answer.MakeReadable(loader, request.prefill_tokens_per_s, patience));
  }
  answer.Account(request, tables.advice);
  PREFIXD_ASSIGN_OR_RETURN(*acquired,
                           std::move(answer).Register(tables.sessions, watcher, loader.model,
                                                      request.prefill_tokens_per_s));
  phases.times.room_us = phases.Next();
  CountPhases(context.phases, request, phases.times);
  Remember(context, tables, *session, *space, request, phases.times, acquired);
  return true;
}

}  // namespace

absl::StatusOr<std::optional<Acquired>> AcquireHere(Context& context, Tables& tables, Room& room,
                                                    Loader& loader, Watcher& watcher,
                                                    const Far& far, block::SessionId id,
                                                    const Request& request,
                                                    const Patience& patience) {
  Acquired acquired;
  PREFIXD_ASSIGN_OR_RETURN(const bool done, AcquireInto(context, tables, room, loader, watcher,
                                                        &far, id, request, patience, &acquired));
  if (!done) return std::optional<Acquired>();
  return std::optional<Acquired>(std::move(acquired));
}

absl::StatusOr<Acquired> Acquire(Context& context, Tables& tables, Room& room, Loader& loader,
                                 Watcher& watcher, block::SessionId id, const Request& request,
                                 const Patience& patience) {
  Acquired acquired;
  PREFIXD_RETURN_IF_ERROR(
      AcquireInto(context, tables, room, loader, watcher, nullptr, id, request, patience, &acquired)
          .status());
  return acquired;
}

void TellOfHit(const Tables& tables, Writer& writer, block::SessionId id, const Request& request,
               const block::MatchAnswer& match) {
  if (match.restorable_tokens == 0 || !writer.WantsHit()) return;
  const absl::StatusOr<SessionPtr> session = tables.sessions.Find(id, "acquire");
  if (!session.ok()) return;
  const absl::StatusOr<SpacePtr> space = tables.spaces.Find(**session, request.space);
  if (!space.ok() || !writer.Wants(**space)) return;
  const std::span<const block::Token> hit =
      std::span(request.tokens).first(match.restorable_tokens);
  writer.TakeHit({.space = *space,
                  .tokens = {hit.begin(), hit.end()},
                  .content = block::CutContent(request.content, 0, match.restorable_tokens)});
}

}  // namespace prefixd::cache::verbs
