// Release.
#include <algorithm>

#include "base/status.h"
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
    if (facts.far_bytes == 0) model.Learn(facts.ram_bytes, facts.ssd_bytes, released.load_us);
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

}  // namespace prefixd::cache::verbs
