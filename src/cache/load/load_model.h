// Estimates how long a worker waits for the pages of a lease, from what workers measured before.
//
// Thread-safe. A tier has a shape, fixed + rate * bytes (the round trip, the transfer), which
// carries what one size taught over to others, and factors: how many times the shape real loads
// took, kept apart for each power of two of bytes. The factor used is the one within twice of which
// most of the last loads of that size were. That is what the estimate promises, and on a machine
// that is busy now and then it is right more often than the median.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "base/mutex.h"

namespace prefixd::cache {

class LoadModel {
 public:
  uint64_t EstimateMicros(uint64_t ram_bytes, uint64_t ssd_bytes, uint64_t far_bytes = 0) const;
  // One load that took `us` in all. A mixed load teaches the tier that it should have spent most of
  // its time in.
  void Learn(uint64_t ram_bytes, uint64_t ssd_bytes, uint64_t us);
  // One load from a store that hosts share, as prefixd measured it.
  void LearnFar(uint64_t bytes, uint64_t us);

 private:
  static constexpr size_t kBuckets = 48;
  static constexpr size_t kSamples = 9;  // kept of each bucket
  static constexpr size_t kEnough = 3;   // to go by; fewer, and the next sizes are asked too
  struct Tier {
    double fixed_us = 0;
    double us_per_byte = 0;
    std::array<std::vector<double>, kBuckets> factors;  // newest last, at most kSamples
    double Shape(uint64_t bytes) const {
      return fixed_us + us_per_byte * static_cast<double>(bytes);
    }
  };
  static size_t BucketOf(uint64_t bytes);
  static double Factor(const Tier& tier, uint64_t bytes);
  static double Estimate(const Tier& tier, uint64_t bytes);
  static void AddSample(Tier& tier, uint64_t bytes, double us);

  mutable base::Mutex mutex_;
  // A local stream of 1 GB/s; a disk of 0.8 GB/s before it; a network of 20 Gbit/s, of which the
  // first load teaches more: one that is thought too slow is never tried.
  Tier ram_ PREFIXD_GUARDED_BY(mutex_) = {.fixed_us = 400, .us_per_byte = 1e-3, .factors = {}};
  Tier ssd_ PREFIXD_GUARDED_BY(mutex_) = {.fixed_us = 600, .us_per_byte = 2.2e-3, .factors = {}};
  Tier far_ PREFIXD_GUARDED_BY(mutex_) = {.fixed_us = 500, .us_per_byte = 0.4e-3, .factors = {}};
};

}  // namespace prefixd::cache
