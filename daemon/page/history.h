// What the daemon had counted at times of the last hour: what a page that was just opened draws.
//
// Not thread-safe. Memory is bounded.
#pragma once
#include <cstdint>
#include <deque>

#include "nlohmann/json_fwd.hpp"

#include "block/answer.h"

namespace prefixd::daemon {

// Tokens and bytes as counted from the daemon's start to some time.
struct PagePoint {
  double uptime_s = 0, seconds_saved = 0;
  uint64_t requested = 0, ram = 0, ssd = 0, far = 0, used = 0;  // tokens
  uint64_t evicted = 0, read = 0, written = 0;                  // bytes: from RAM, from and to SSD

  uint64_t restorable() const { return ram + ssd + far; }
};
PagePoint PagePointOf(const block::Stats& stats);
nlohmann::json Json(const PagePoint& point);

class PageHistory {
 public:
  static constexpr size_t kMostPoints = 720;

  // Adds what `stats` says; the oldest of more than kMostPoints goes.
  void Add(const block::Stats& stats);
  void Forget() { points_.clear(); }
  // Returns the oldest point that is at most so old at `now_s` of the daemon's uptime; the newest
  // if all are older; nothing counted at uptime 0 if there is none.
  PagePoint Before(double now_s, double seconds) const;
  // Returns {"points": [...]}, the oldest first.
  nlohmann::json Json() const;

 private:
  std::deque<PagePoint> points_;
};

}  // namespace prefixd::daemon
