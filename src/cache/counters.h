// Counters and latency histograms by name. Thread-safe.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "block/answer.h"

namespace prefixd::cache {

class Counters {
 public:
  void Add(const std::string& name, uint64_t by = 1);
  void AddSecondsSaved(double seconds);
  void Time(const std::string& name, uint64_t us);
  uint64_t value(const std::string& name) const;  // 0 for a name never counted
  // Fills counters, latencies and seconds_saved, by name in order.
  void Export(block::Stats* stats) const;

 private:
  mutable base::Mutex mutex_;
  std::map<std::string, uint64_t> counts_ PREFIXD_GUARDED_BY(mutex_);
  std::map<std::string, block::LatencyHistogram> latencies_ PREFIXD_GUARDED_BY(mutex_);
  double seconds_saved_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::cache
