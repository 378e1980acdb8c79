// Release, Join and Hold.
#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "cache/verbs/lease_answer.h"
#include "cache/verbs/request.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {

absl::Status Release(Context& context, Tables& tables, LoadModel& model, block::SessionId session,
                     const Released& released) {
  PREFIXD_ASSIGN_OR_RETURN(const LeasePtr lease,
                           tables.sessions.TakeLease(session, released.lease));
  const LeaseFacts facts = lease->facts();
  const uint32_t used = std::min(released.used_tokens, facts.tokens);
  context.counters.Add("tokens.used", used);
  if (lease->answer != 0) {
    tables.history.Learn(lease->answer, used, released.load_us, released.first_token_us);
  }
  if (released.load_us > 0) {
    model.Learn(facts.ram_bytes, facts.ssd_bytes, released.load_us);
    context.counters.Time("load", released.load_us);
  }
  if (released.first_token_us > 0) context.counters.Time("first_token", released.first_token_us);
  const int64_t age_us = std::max<int64_t>(0, context.Now() - lease->begun_us);
  context.counters.AddSecondsSaved(tables.worth.Seconds(
      {.space = lease->space == nullptr ? block::SpaceHandle{} : lease->space->handle,
       .used_tokens = used,
       .told_rate = released.prefill_tokens_per_s,
       .looked_up_rate = lease->prefill_rate,
       .load_us = released.load_us,
       .lease_age_us = static_cast<uint64_t>(age_us)}));
  return absl::OkStatus();
}

absl::StatusOr<Acquired> Join(Context& context, Tables& tables, Loader& loader, Watcher& watcher,
                              block::SessionId id, block::LeaseId lease,
                              const std::vector<uint32_t>& groups) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, tables.sessions.Find(id, "join"));
  const LeasePtr joined = tables.sessions.FindLeaseOfAnybody(lease);
  // Somebody else's space is as good as unknown.
  if (joined == nullptr || joined->space == nullptr ||
      !tables.spaces.IsOpen(*session, joined->space->handle)) {
    return absl::NotFoundError(
        absl::StrCat("join: no lease ", lease.value, " in a space that this session opened"));
  }
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*joined->space, groups, {}));
  PREFIXD_ASSIGN_OR_RETURN(index::Acquired held,
                           context.index->Join(joined->in_index(),
                                               {.selection = {.groups = groups, .rungs = {}},
                                                .slot = session->slot_number(),
                                                .max_tokens = joined->facts().tokens},
                                               id));
  context.counters.Add("leases.joined");
  LeaseAnswer answer(&context, session, joined->space, std::move(held));
  // What the first holder waits for, this one is told of too.
  PREFIXD_RETURN_IF_ERROR(answer.MakeReadable(loader, 0, std::chrono::steady_clock::now()));
  return std::move(answer).Register(tables.sessions, watcher, loader.model, 0);
}

// Holds more than the lease: going on with one whose page turned out bad gives up pages behind
// that, also those whose bytes are still on their way out.
std::shared_ptr<const void> Hold(Context& context, const Sessions& sessions,
                                 block::SessionId session, block::LeaseId lease) {
  const absl::StatusOr<LeasePtr> found = sessions.FindLease(session, lease);
  if (!found.ok()) return nullptr;
  struct Held {
    LeasePtr lease;
    std::optional<PageHold> pages;
  };
  auto held = std::make_shared<Held>();
  held->lease = *found;
  if ((*found)->space == nullptr) return held;
  const absl::StatusOr<index::Acquired> joined = context.index->Join(
      (*found)->in_index(), {.selection = {}, .max_tokens = (*found)->facts().leased},
      context.NewOwner());
  if (joined.ok()) held->pages.emplace(&context, joined->lease);
  return held;
}

}  // namespace prefixd::cache::verbs
