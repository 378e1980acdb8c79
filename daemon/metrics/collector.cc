#include "daemon/metrics/collector.h"

#include "daemon/metrics/stats_families.h"

namespace prefixd::daemon {

std::vector<prometheus::MetricFamily> Collector::Collect() const {
  Families families;
  {
    const base::MutexLock lock(mutex_);
    const block::Stats stats = get_stats_();  // within: series must not see an older one after it
    AddStats(stats, &families);
    spaces_.Update(stats);
    spaces_.AddTo(&families);
  }
  AddProcess(&families);
  return families.Take();
}

}  // namespace prefixd::daemon
