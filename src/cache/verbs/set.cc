// Several requests with one length: a model's ranks, a draft beside its target.
#include <utility>

#include "base/status.h"
#include "cache/verbs/lease_answer.h"
#include "cache/verbs/phases.h"
#include "cache/verbs/request.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

absl::StatusOr<std::vector<SetMember>> MembersOf(const Spaces& spaces, const Session& session,
                                                 std::span<const Request> requests, uint32_t slot) {
  std::vector<SetMember> members;
  for (const Request& request : requests) {
    PREFIXD_ASSIGN_OR_RETURN(SpacePtr space, spaces.Find(session, request.space));
    PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
    PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.readable));
    members.push_back({.request = &request,
                       .space = std::move(space),
                       .item = {.space = request.space,
                                .request = {request.tokens, request.content},
                                .options = OptionsOf(request, slot)}});
  }
  return members;
}

std::vector<index::SetItem> ItemsOf(std::span<const SetMember> members) {
  std::vector<index::SetItem> items;
  for (const SetMember& member : members) items.push_back(member.item);
  return items;
}

// Ends what a set that failed has been given.
void ReleaseAll(Context& context, Sessions& sessions, block::SessionId session,
                const std::vector<Acquired>& set) {
  for (const Acquired& acquired : set) {
    if (acquired.lease) sessions.TakeLease(session, acquired.lease).IgnoreError();
  }
  context.FreeTaken();
}

}  // namespace

absl::StatusOr<std::vector<block::MatchAnswer>> MatchSet(Context& context, Tables& tables,
                                                         Room& room, const LoadModel& model,
                                                         block::SessionId id,
                                                         std::span<const Request> requests) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, tables.sessions.Find(id, "match"));
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<SetMember> members,
                           MembersOf(tables.spaces, *session, requests, block::kNoSlot));
  room.KeepLimits();
  std::vector<block::MatchAnswer> answers = context.index->MatchSet(ItemsOf(members), id);
  for (block::MatchAnswer& answer : answers) {
    answer.load_us = model.EstimateMicros(answer.ram_bytes, answer.ssd_bytes);
  }
  context.counters.Add("matches", answers.size());
  return answers;
}

absl::StatusOr<std::vector<Acquired>> AcquireSet(Context& context, Tables& tables, Room& room,
                                                 Loader& loader, Watcher& watcher,
                                                 block::SessionId id,
                                                 std::span<const Request> requests,
                                                 const Patience& patience) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, tables.sessions.Find(id, "acquire"));
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<SetMember> members,
                           MembersOf(tables.spaces, *session, requests, session->slot_number()));
  room.KeepLimits();
  room.FitIndexForLeases();
  Phases phases(context);
  for (const SetMember& member : members) {
    if (member.request->wait_pending.count() == 0) continue;
    WaitForAnnounced(context, tables.sessions, *member.request, member.item.options, *session,
                     patience);
    if (patience.gave_up()) return absl::CancelledError("acquire: the caller gave up");
  }
  phases.times.wait_us = phases.Next();
  std::vector<index::Acquired> held = context.index->AcquireSet(ItemsOf(members), id);
  phases.times.match_us = phases.Next();
  if (!held.empty()) loader.StartAll(id, members, patience, &held);
  phases.times.room_us = phases.Next();
  if (!requests.empty()) CountPhases(context.phases, requests.front(), phases.times);
  std::vector<LeaseAnswer> answers;  // all of them own their leases from here on
  for (size_t i = 0; i < members.size(); ++i) {
    answers.emplace_back(&context, session, members[i].space, std::move(held[i]));
  }
  std::vector<Acquired> set;
  for (size_t i = 0; i < members.size(); ++i) {
    const Request& request = *members[i].request;
    answers[i].Account(request, tables.advice);
    absl::StatusOr<Acquired> acquired =
        std::move(answers[i])
            .Register(tables.sessions, watcher, loader.model, request.prefill_tokens_per_s);
    if (!acquired.ok()) {
      ReleaseAll(context, tables.sessions, id, set);
      return acquired.status();
    }
    Remember(context, tables, *session, *members[i].space, request, phases.times, &*acquired);
    set.push_back(*std::move(acquired));
  }
  context.counters.Add("acquires.sets");
  return set;
}

}  // namespace prefixd::cache::verbs
