#include "bench/fleet/router.h"

#include "bench/common/mix.h"

namespace prefixd::bench {

uint32_t Router::LessLoadedOfTwo() {
  const auto draw = [this] { return static_cast<uint32_t>(Mix(random_++) % load_.size()); };
  const uint32_t a = draw(), b = draw();
  return load_[b] < load_[a] ? b : a;
}

uint32_t Router::ByPrefix(std::span<const FleetBlock> path) {
  for (size_t length = path.size(); length > path.size() / 2; --length) {
    const auto served = served_by_.find(path[length - 1]);
    if (served == served_by_.end()) continue;
    const double share = static_cast<double>(total_) / static_cast<double>(load_.size());
    const auto most = kMostLoad * share + static_cast<double>(path.size());
    if (static_cast<double>(load_[served->second]) <= most) return served->second;
    break;
  }
  return LessLoadedOfTwo();
}

uint32_t Router::HostOf(std::span<const FleetBlock> path) {
  if (routing_ == Routing::kRoundRobin) return static_cast<uint32_t>(next_++ % load_.size());
  const uint32_t host = ByPrefix(path);
  for (const FleetBlock block : path) served_by_[block] = host;
  load_[host] += path.size();
  total_ += path.size();
  return host;
}

}  // namespace prefixd::bench
