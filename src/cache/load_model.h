// Estimates how long a worker waits for the pages of a lease, from what workers measured before.
//
// Thread-safe. For each tier: microseconds per byte, learned apart for each power of two of bytes
// (a small load is dominated by the round trip, a large one by the transfer), as the median of the
// last samples.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "base/mutex.h"

namespace prefixd::cache {

class LoadModel {
 public:
  uint64_t EstimateMicros(uint64_t ram_bytes, uint64_t ssd_bytes) const;
  // One load that took `us` in all. A mixed load teaches the tier that it should have spent most of
  // its time in.
  void Learn(uint64_t ram_bytes, uint64_t ssd_bytes, uint64_t us);

 private:
  static constexpr size_t kBuckets = 48;
  static constexpr size_t kSamples = 9;
  struct Tier {
    double default_us_per_byte = 0;
    double default_fixed_us = 0;
    std::array<std::vector<double>, kBuckets> us_per_byte;  // newest last, at most kSamples
  };
  static double Estimate(const Tier& tier, uint64_t bytes);

  mutable base::Mutex mutex_;
  // Before anything is learned: a local stream of 1 GB/s, a disk of 0.7 GB/s behind it.
  Tier ram_ PREFIXD_GUARDED_BY(mutex_) = {
      .default_us_per_byte = 1e-3, .default_fixed_us = 500, .us_per_byte = {}};
  Tier ssd_ PREFIXD_GUARDED_BY(mutex_) = {
      .default_us_per_byte = 2.4e-3, .default_fixed_us = 1500, .us_per_byte = {}};
};

}  // namespace prefixd::cache
