// Release.
#include <algorithm>

#include "base/status.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

void CountUsed(Context& context, const Lease& lease, const LeaseFacts& facts, uint64_t used) {
  const uint64_t remote = std::min<uint64_t>(facts.far_tokens, facts.tokens);
  const uint64_t ssd = std::min<uint64_t>(facts.ssd_tokens, facts.tokens - remote);
  const block::TierTokens tiers =
      SplitUsed(used, {.ram = facts.tokens - ssd - remote, .ssd = ssd, .remote = remote});
  context.counters.AddAll({{"tokens.used", used},
                           {"tokens.used.ram", tiers.ram},
                           {"tokens.used.ssd", tiers.ssd},
                           {"tokens.used.remote", tiers.remote}});
  if (lease.space != nullptr) lease.space->tokens.CountUsed(tiers);
}

}  // namespace

absl::Status Release(Context& context, Tables& tables, LoadModel& model, block::SessionId session,
                     const Released& released) {
  PREFIXD_ASSIGN_OR_RETURN(const LeasePtr lease,
                           tables.sessions.TakeLease(session, released.lease));
  const LeaseFacts facts = lease->facts();
  const uint32_t used = std::min(released.used_tokens, facts.tokens);
  CountUsed(context, *lease, facts, used);
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
