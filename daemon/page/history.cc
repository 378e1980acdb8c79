#include "daemon/page/history.h"

#include "nlohmann/json.hpp"

#include "daemon/request_log.h"

namespace prefixd::daemon {

PagePoint PagePointOf(const block::Stats& stats) {
  return {.uptime_s = stats.uptime_s,
          .seconds_saved = stats.seconds_saved,
          .requested = CounterOf(stats, "tokens.requested"),
          .ram = CounterOf(stats, "tokens.restorable.ram"),
          .ssd = CounterOf(stats, "tokens.restorable.ssd"),
          .far = CounterOf(stats, "tokens.restorable.remote"),
          .used = CounterOf(stats, "tokens.used"),
          .evicted = CounterOf(stats, "bytes.evicted"),
          .read = CounterOf(stats, "bytes.promoted"),
          .written = CounterOf(stats, "bytes.spilled") + CounterOf(stats, "bytes.rewritten")};
}

nlohmann::json Json(const PagePoint& point) {
  return {{"uptime_s", point.uptime_s},
          {"seconds_saved", point.seconds_saved},
          {"requested", point.requested},
          {"ram", point.ram},
          {"ssd", point.ssd},
          {"far", point.far},
          {"used", point.used},
          {"evicted", point.evicted},
          {"ssd_read", point.read},
          {"ssd_written", point.written}};
}

void PageHistory::Add(const block::Stats& stats) {
  points_.push_back(PagePointOf(stats));
  if (points_.size() > kMostPoints) points_.pop_front();
}

PagePoint PageHistory::Before(double now_s, double seconds) const {
  for (const PagePoint& point : points_) {
    if (now_s - point.uptime_s <= seconds) return point;
  }
  return points_.empty() ? PagePoint() : points_.back();
}

nlohmann::json PageHistory::Json() const {
  nlohmann::json points = nlohmann::json::array();
  for (const PagePoint& point : points_) points.push_back(daemon::Json(point));
  return {{"points", std::move(points)}};
}

}  // namespace prefixd::daemon
