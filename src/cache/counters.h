// Counters and latency histograms by name. Thread-safe. Each thread counts in one of a few shards,
// so that requests do not wait for each other to be counted.
#pragma once
#include <array>
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
  static constexpr size_t kShards = 8;
  struct alignas(64) Shard {
    mutable base::Mutex mutex;
    std::map<std::string, uint64_t, std::less<>> counts PREFIXD_GUARDED_BY(mutex);
    std::map<std::string, block::LatencyHistogram, std::less<>> latencies PREFIXD_GUARDED_BY(mutex);
    double seconds_saved PREFIXD_GUARDED_BY(mutex) = 0;

    void Count(std::string_view name, uint64_t by) PREFIXD_REQUIRES(mutex);
  };
  Shard& Mine();  // of this thread

  std::array<Shard, kShards> shards_;
};

}  // namespace prefixd::cache
