#include "cache/tables/worth.h"

#include <algorithm>
#include <cmath>

namespace prefixd::cache {
namespace {

constexpr double kSlowest = 0.1, kFastest = 1e7;  // tokens per second
// The worker began to wait a little before its lease did.
constexpr uint64_t kLookUpUs = 1'000'000;

}  // namespace

double BelievableRate(double tokens_per_s) {
  if (!std::isfinite(tokens_per_s) || tokens_per_s <= 0 || tokens_per_s > kFastest) return 0;
  return std::max(kSlowest, tokens_per_s);
}

double Worth::RateOf(const Release& release) {
  const double told = BelievableRate(release.told_rate);
  const double looked_up = BelievableRate(release.looked_up_rate);
  if (!release.space) return told > 0 ? told : looked_up;
  base::MutexLock lock(mutex_);
  if (told > 0) return rates_[release.space] = told;
  if (looked_up > 0) return looked_up;
  const auto known = rates_.find(release.space);
  return known == rates_.end() ? 0 : known->second;
}

double Worth::Seconds(const Release& release) {
  const double rate = RateOf(release);
  if (rate == 0) return 0;
  const bool told = BelievableRate(release.told_rate) > 0;
  if (release.used_tokens == 0 && !told) return 0;  // nobody says that it waited for nothing
  const uint64_t load_us = std::min(release.load_us, release.lease_age_us + kLookUpUs);
  return release.used_tokens / rate - static_cast<double>(load_us) * 1e-6;
}

void Worth::Forget(block::SpaceHandle space) {
  base::MutexLock lock(mutex_);
  rates_.erase(space);
}

}  // namespace prefixd::cache
