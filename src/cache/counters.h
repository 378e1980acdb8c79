// Counters and latency histograms by name. Thread-safe.
#pragma once
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "block/answer.h"

namespace prefixd::cache {

class Counters {
 public:
  void Add(std::string_view name, uint64_t by = 1);
  // Several at once: one lock.
  using Counts = std::initializer_list<std::pair<std::string_view, uint64_t>>;
  void AddAll(Counts counts);
  void AddSecondsSaved(double seconds);
  void Time(std::string_view name, uint64_t us);
  uint64_t value(std::string_view name) const;  // 0 for a name never counted
  // Fills counters, latencies and seconds_saved, by name in order.
  void Export(block::Stats* stats) const;

 private:
  void AddLocked(std::string_view name, uint64_t by) PREFIXD_REQUIRES(mutex_);

  mutable base::Mutex mutex_;
  std::map<std::string, uint64_t, std::less<>> counts_ PREFIXD_GUARDED_BY(mutex_);
  std::map<std::string, block::LatencyHistogram, std::less<>> latencies_ PREFIXD_GUARDED_BY(mutex_);
  double seconds_saved_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::cache
