// Histograms of where the time of requests goes. Thread-safe, without a lock: every hit counts.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "block/answer.h"

namespace prefixd::cache {

class TimesGauge {
 public:
  void Add(uint64_t us) {
    const auto bucket = static_cast<size_t>(std::bit_width(us | 1) - 1);
    buckets_[std::min(bucket, buckets_.size() - 1)].fetch_add(1, std::memory_order_relaxed);
    sum_us_.fetch_add(us, std::memory_order_relaxed);
  }
  // While others add, the sum may have a value more or less than the buckets.
  block::LatencyHistogram Get() const {
    block::LatencyHistogram histogram{.buckets = {}, .sum_us = sum_us_.load()};
    for (size_t i = 0; i < buckets_.size(); ++i) {
      histogram.buckets[i] = buckets_[i].load(std::memory_order_relaxed);
      histogram.count += histogram.buckets[i];
    }
    return histogram;
  }

 private:
  std::array<std::atomic<uint64_t>, 32> buckets_{};
  std::atomic<uint64_t> sum_us_{0};
};

// The phases of an Acquire. `wait` and `remote` have those that waited, or asked other hosts.
struct AcquirePhases {
  TimesGauge wait, match, room, remote;
};

}  // namespace prefixd::cache
