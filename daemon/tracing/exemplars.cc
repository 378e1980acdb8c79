#include "daemon/tracing/exemplars.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace prefixd::daemon {

void Exemplars::Note(std::string_view verb, const Exemplar& call) {
  const auto us = static_cast<uint64_t>(std::max(call.seconds, 0.0) * 1e6);
  const auto bucket = std::min(kBuckets - 1, static_cast<size_t>(std::bit_width(us | 1)) - 1);
  const base::MutexLock lock(mutex_);
  auto of_verb = calls_.find(verb);
  if (of_verb == calls_.end()) of_verb = calls_.try_emplace(std::string(verb)).first;
  of_verb->second[bucket] = call;
}

std::optional<Exemplar> Exemplars::Find(std::string_view verb, double above_s,
                                        double up_to_s) const {
  const base::MutexLock lock(mutex_);
  const auto of_verb = calls_.find(verb);
  if (of_verb == calls_.end()) return std::nullopt;
  std::optional<Exemplar> newest;
  for (const std::optional<Exemplar>& call : of_verb->second) {
    if (!call.has_value() || call->seconds <= above_s || call->seconds > up_to_s) continue;
    if (!newest.has_value() || call->unix_s > newest->unix_s) newest = call;
  }
  return newest;
}

}  // namespace prefixd::daemon
