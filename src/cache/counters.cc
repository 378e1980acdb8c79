#include "cache/counters.h"

#include <algorithm>
#include <atomic>
#include <bit>

namespace prefixd::cache {
namespace {

void AddTo(const block::LatencyHistogram& more, block::LatencyHistogram* sum) {
  for (size_t i = 0; i < more.buckets.size(); ++i) sum->buckets[i] += more.buckets[i];
  sum->count += more.count;
  sum->sum_us += more.sum_us;
}

}  // namespace

void Counters::Shard::Count(std::string_view name, uint64_t by) {
  auto found = counts.find(name);
  if (found == counts.end()) found = counts.emplace(std::string(name), 0).first;
  found->second += by;
}

Counters::Shard& Counters::Mine() {
  static std::atomic<size_t> threads{0};
  thread_local const size_t mine = threads++ % kShards;
  return shards_[mine];
}

void Counters::Add(std::string_view name, uint64_t by) {
  Shard& shard = Mine();
  base::MutexLock lock(shard.mutex);
  shard.Count(name, by);
}

void Counters::AddAll(Counts counts) {
  Shard& shard = Mine();
  base::MutexLock lock(shard.mutex);
  for (const auto& [name, by] : counts) shard.Count(name, by);
}

void Counters::AddSecondsSaved(double seconds) {
  Shard& shard = Mine();
  base::MutexLock lock(shard.mutex);
  shard.seconds_saved += seconds;
}

void Counters::Time(std::string_view name, uint64_t us) {
  Shard& shard = Mine();
  base::MutexLock lock(shard.mutex);
  auto found = shard.latencies.find(name);
  if (found == shard.latencies.end()) {
    found = shard.latencies.emplace(std::string(name), block::LatencyHistogram{}).first;
  }
  block::LatencyHistogram& histogram = found->second;
  const auto bucket = static_cast<size_t>(std::bit_width(std::max<uint64_t>(us, 1)) - 1);
  ++histogram.buckets[std::min(bucket, histogram.buckets.size() - 1)];
  ++histogram.count;
  histogram.sum_us += us;
}

uint64_t Counters::value(std::string_view name) const {
  uint64_t sum = 0;
  for (const Shard& shard : shards_) {
    base::MutexLock lock(shard.mutex);
    const auto found = shard.counts.find(name);
    if (found != shard.counts.end()) sum += found->second;
  }
  return sum;
}

void Counters::Export(block::Stats* stats) const {
  std::map<std::string, uint64_t> counts;
  std::map<std::string, block::LatencyHistogram> latencies;
  stats->seconds_saved = 0;
  for (const Shard& shard : shards_) {
    base::MutexLock lock(shard.mutex);
    for (const auto& [name, value] : shard.counts) counts[name] += value;
    for (const auto& [name, histogram] : shard.latencies) AddTo(histogram, &latencies[name]);
    stats->seconds_saved += shard.seconds_saved;
  }
  for (const auto& [name, value] : counts) stats->counters.push_back({name, value});
  for (const auto& [name, histogram] : latencies) stats->latencies.push_back({name, histogram});
}

}  // namespace prefixd::cache
