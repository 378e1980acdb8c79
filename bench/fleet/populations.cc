#include "bench/fleet/populations.h"

#include <algorithm>

#include "bench/common/mix.h"

namespace prefixd::bench {

Populations::Populations(const Trace& trace, const Load& load) : trace_(trace) {
  size_t requests = 0;
  uint64_t blocks = 0;
  for (; requests < trace.requests.size(); ++requests) {
    if (blocks + trace.requests[requests].blocks > load.most_blocks) break;
    blocks += trace.requests[requests].blocks;
  }
  if (requests == 0) return;
  const double begin_ms = trace.requests[0].at_ms;
  const double recorded_us = std::max(1.0, (trace.requests[requests - 1].at_ms - begin_ms) * 1e3);
  const double wanted_us =
      static_cast<double>(blocks) * kTraceBlockTokens / load.tokens_per_s * 1e6;
  for (uint32_t population = 0; population < load.populations; ++population) {
    const uint64_t drawn = Mix(load.seed + population) % static_cast<uint64_t>(kMostShiftUs);
    const int64_t shift_us = population == 0 ? 0 : static_cast<int64_t>(drawn);
    for (size_t number = 0; number < requests; ++number) {
      const double at_us =
          (trace.requests[number].at_ms - begin_ms) * 1e3 * wanted_us / recorded_us;
      requests_.push_back({.at_us = static_cast<int64_t>(at_us) + shift_us,
                           .population = population,
                           .number = number});
    }
  }
  std::sort(requests_.begin(), requests_.end());
}

const std::vector<FleetBlock>& Populations::PathOf(const Request& request) {
  path_.clear();
  const FleetBlock first = request.population * trace_.unique;
  for (const TraceBlock block : trace_.blocks(trace_.requests[request.number])) {
    path_.push_back(first + block);
  }
  return path_;
}

}  // namespace prefixd::bench
