#include "cache/verbs/phases.h"

#include "absl/strings/str_cat.h"

namespace prefixd::cache {

void WaitForAnnounced(Context& context, Sessions& sessions, const Request& request,
                      const index::MatchOptions& options, const Session& session,
                      const Patience& patience) {
  const auto begun = std::chrono::steady_clock::now();
  const Patience waiting = patience.Before(begun + request.wait_pending);
  const auto goes_on = [&] { return !waiting.over() && !session.over.load(); };
  Announcements& announcements = sessions.announcements;
  bool waited = false;
  while (goes_on()) {
    sessions.EndIdleReservations();
    const uint64_t seen = announcements.count();
    const block::MatchAnswer match =
        context.index->Match(request.space, {request.tokens, request.content}, options, session.id);
    if (match.pending_tokens == 0) break;
    waited = true;
    while (announcements.count() == seen && goes_on()) {
      announcements.Wait(seen, waiting.next_look());
    }
  }
  if (!waited) return;
  context.counters.Add("waits.pending");
  const auto passed = std::chrono::steady_clock::now() - begun;
  context.counters.Time(
      "wait_pending",
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(passed).count()));
}

void CountPhases(AcquirePhases& phases, const Request& request, const PhaseTimes& times) {
  if (request.wait_pending.count() > 0) phases.wait.Add(times.wait_us);
  if (request.remote_us > 0) phases.remote.Add(request.remote_us);
  phases.match.Add(times.match_us);
  phases.room.Add(times.room_us);
}

void Remember(const Context& context, Tables& tables, const Session& session,
              const SpaceInfo& space, const Request& request, const PhaseTimes& times,
              Acquired* acquired) {
  acquired->times = times;
  acquired->request_id = request.request_id;
  if (acquired->request_id.empty()) {
    acquired->request_id = absl::StrCat("acquire-", tables.history.NextNumber());
  }
  block::PastAnswer past{.request_id = acquired->request_id,
                         .space = space.id,
                         .worker = session.worker,
                         .requested_tokens = static_cast<uint32_t>(request.tokens.size()),
                         .match = acquired->match,
                         .wait_us = times.wait_us,
                         .match_us = times.match_us,
                         .room_us = times.room_us,
                         .remote_us = request.remote_us};
  LeasePtr lease;
  if (acquired->lease) {
    if (auto found = tables.sessions.FindLease(session.id, acquired->lease); found.ok()) {
      lease = *std::move(found);
    }
  }
  const uint64_t serial = tables.history.Add(
      std::move(past), lease == nullptr ? index::BlockRef() : lease->last_full, context.Now());
  if (lease != nullptr) lease->answer = serial;
}

}  // namespace prefixd::cache
