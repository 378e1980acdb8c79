#include "cache/tables/format_advice.h"

#include <algorithm>

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
  if (rules_.coarser_above > 0) {
    const double limit = rules_.coarser_above;
    Set(&state_.full, state_.full ? used >= limit - kFullMargin : used > limit);
  }
  return state_.full || state_.missing ? 1 : 0;
}

FormatAdvice::State FormatAdvice::state() const {
  base::MutexLock lock(mutex_);
  return state_;
}

}  // namespace prefixd::cache
