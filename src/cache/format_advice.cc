#include "cache/format_advice.h"

#include <algorithm>
#include <bit>

#include "cache/core.h"

namespace prefixd::cache {
namespace {

constexpr double kMissesBegin = 0.05, kMissesEnd = 0.02;
constexpr double kFullMargin = 0.1;  // of the arena, below where the rule began

}  // namespace

void FormatAdvice::Set(bool* rule, bool holds) {
  if (holds && !state_.full && !state_.missing) ++state_.times;
  *rule = holds;
}

void FormatAdvice::CountRequest(uint64_t tokens, uint64_t given_up) {
  if (!rules_.on_misses) return;
  base::MutexLock lock(mutex_);
  requested_ += static_cast<double>(tokens);
  given_up_ += static_cast<double>(std::min(given_up, tokens));
  if (requested_ > static_cast<double>(rules_.window_tokens)) {
    requested_ /= 2;
    given_up_ /= 2;
  }
  state_.missed_permille =
      requested_ > 0 ? static_cast<uint64_t>(1000 * given_up_ / requested_) : 0;
  if (requested_ < static_cast<double>(rules_.judged_from_tokens)) return;
  const double missed = given_up_ / requested_;
  Set(&state_.missing, state_.missing ? missed >= kMissesEnd : missed > kMissesBegin);
}

uint32_t FormatAdvice::Steps(double used) {
  base::MutexLock lock(mutex_);
  if (rules_.tighten_above > 0) {
    const double limit = rules_.tighten_above;
    Set(&state_.full, state_.full ? used >= limit - kFullMargin : used > limit);
  }
  return state_.full || state_.missing ? 1 : 0;
}

FormatAdvice::State FormatAdvice::state() const {
  base::MutexLock lock(mutex_);
  return state_;
}

uint32_t Core::AdvisedSteps() {
  double used = 0;
  if (format_advice.rules().tighten_above > 0) {
    const ram::ArenaStats stats = arena->stats();
    used = static_cast<double>(stats.extent_bytes) /
           static_cast<double>(std::max<uint64_t>(stats.capacity_bytes, 1));
  }
  return format_advice.Steps(used);
}

void Core::CountAdvised(const block::ReservePlan& plan, const std::vector<uint64_t>& writable) {
  uint64_t coarser = 0;
  for (const block::BlockPlan& block : plan.blocks) {
    if (block.state == block::BlockState::kPresent) continue;
    for (size_t group = 0; group < block.rungs.size(); ++group) {
      const uint64_t mask = writable.empty() ? 1 : writable[group];
      coarser += block.rungs[group] != block::kNoLimit &&
                 block.rungs[group] > static_cast<uint32_t>(std::countr_zero(mask));
    }
  }
  if (coarser > 0) counters.Add("advice.coarser_pages", coarser);
}

void Core::CountGivenUp(const Request& request, const block::MatchAnswer& answer) {
  if (!format_advice.rules().on_misses) return;
  uint64_t given_up = 0;
  for (const block::Shortening& shortening : answer.shortened_by) {
    if (shortening.reason == block::ShortenReason::kEvicted) given_up += shortening.tokens_lost;
  }
  // What follows a lease is not looked up again as a whole.
  if (answer.ended_by == block::EndReason::kEvicted && !request.continues) {
    given_up += index->GhostTokens(request.space, {request.tokens, request.content});
  }
  if (given_up > 0) counters.Add("tokens.given_up", given_up);
  format_advice.CountRequest(request.tokens.size(), given_up);
}

void Core::ExportAdvice(block::Stats* stats) const {
  const FormatAdvice::State state = format_advice.state();
  stats->counters.push_back({"advice.coarser", state.full || state.missing ? 1u : 0u});
  stats->counters.push_back({"advice.missed_permille", state.missed_permille});
  stats->counters.push_back({"advice.times", state.times});
}

}  // namespace prefixd::cache
