#include "cache/counters.h"

#include <algorithm>
#include <bit>

namespace prefixd::cache {

void Counters::AddLocked(std::string_view name, uint64_t by) {
  auto found = counts_.find(name);
  if (found == counts_.end()) found = counts_.emplace(std::string(name), 0).first;
  found->second += by;
}

void Counters::Add(std::string_view name, uint64_t by) {
  base::MutexLock lock(mutex_);
  AddLocked(name, by);
}

void Counters::AddAll(Counts counts) {
  base::MutexLock lock(mutex_);
  for (const auto& [name, by] : counts) AddLocked(name, by);
}

void Counters::AddSecondsSaved(double seconds) {
  base::MutexLock lock(mutex_);
  seconds_saved_ += seconds;
}

void Counters::Time(std::string_view name, uint64_t us) {
  base::MutexLock lock(mutex_);
  auto found = latencies_.find(name);
  if (found == latencies_.end()) {
    found = latencies_.emplace(std::string(name), block::LatencyHistogram{}).first;
  }
  block::LatencyHistogram& histogram = found->second;
  const auto bucket = static_cast<size_t>(std::bit_width(std::max<uint64_t>(us, 1)) - 1);
  ++histogram.buckets[std::min(bucket, histogram.buckets.size() - 1)];
  ++histogram.count;
  histogram.sum_us += us;
}

uint64_t Counters::value(std::string_view name) const {
  base::MutexLock lock(mutex_);
  auto found = counts_.find(name);
  return found == counts_.end() ? 0 : found->second;
}

void Counters::Export(block::Stats* stats) const {
  base::MutexLock lock(mutex_);
  for (const auto& [name, value] : counts_) stats->counters.push_back({name, value});
  for (const auto& [name, histogram] : latencies_) stats->latencies.push_back({name, histogram});
  stats->seconds_saved = seconds_saved_;
}

}  // namespace prefixd::cache
