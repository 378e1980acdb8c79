// Which host of a fleet a request goes to.
//
// Plain values; one thread.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "bench/fleet/recent_blocks.h"

namespace prefixd::bench {

enum class Routing {
  kRoundRobin,
  // The host that served most of the request's prefix last, if that is half of it and the host has
  // not been given kMostLoad times its share; else the less loaded of two drawn at random.
  kPrefix,
};

class Router {
 public:
  static constexpr double kMostLoad = 1.25;

  Router(Routing routing, uint32_t hosts, uint64_t seed)
      : routing_(routing), load_(hosts), random_(seed) {}
  uint32_t HostOf(std::span<const FleetBlock> path);

 private:
  uint32_t ByPrefix(std::span<const FleetBlock> path);
  uint32_t LessLoadedOfTwo();

  const Routing routing_;
  std::vector<uint64_t> load_;  // blocks that each host was given
  uint64_t total_ = 0, next_ = 0;
  uint64_t random_;
  absl::flat_hash_map<FleetBlock, uint32_t> served_by_;
};

}  // namespace prefixd::bench
