// What a scrape asks: the cache's own statistics, as metrics.
#pragma once
#include <cstddef>
#include <functional>
#include <vector>

#include "base/mutex.h"
#include "block/answer.h"
#include "daemon/metrics/space_series.h"
#include "prometheus/collectable.h"

namespace prefixd::daemon {

// Thread-safe. Keeps nothing between scrapes but which spaces have series of their own.
class Collector final : public prometheus::Collectable {
 public:
  // `get_stats` is called by each scrape; it must be thread-safe.
  Collector(std::function<block::Stats()> get_stats, size_t most_spaces)
      : get_stats_(std::move(get_stats)), spaces_(most_spaces) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::function<block::Stats()> get_stats_;
  mutable base::Mutex mutex_;
  mutable SpaceSeries spaces_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::daemon
