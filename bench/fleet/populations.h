// The load of a fleet: a recorded trace, once for each population of users.
//
// Plain values.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/fleet/recent_blocks.h"
#include "bench/trace/file.h"

namespace prefixd::bench {

class Populations {
 public:
  struct Request {
    int64_t at_us = 0;
    uint32_t population = 0;
    size_t number = 0;  // in the trace
    auto operator<=>(const Request&) const = default;
  };
  static constexpr int64_t kMostShiftUs = 60'000'000;

  struct Load {
    uint32_t populations = 1;
    uint64_t most_blocks = 0;      // that each asks for
    double tokens_per_s = 40'000;  // that each asks for: the trace is played at another speed
    uint64_t seed = 0;
  };
  // Each population sends the trace's requests, and shares no block with another one. All but the
  // first begin later, by a time up to kMostShiftUs that follows from the seed. `trace` must stay.
  Populations(const Trace& trace, const Load& load);

  const std::vector<Request>& requests() const { return requests_; }  // in order of time
  // Valid until the next call.
  const std::vector<FleetBlock>& PathOf(const Request& request);

 private:
  const Trace& trace_;
  std::vector<Request> requests_;
  std::vector<FleetBlock> path_;
};

}  // namespace prefixd::bench
