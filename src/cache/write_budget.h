// A budget of writes, to the SSD or to a store that hosts share: two token buckets over long
// windows, from which all that is written is taken, for the first time or again. One fills with
// time: what is written over a day is bounded, bursts are free. One fills with what is asked for:
// writing more than a share of that does not gain hits in return.
#pragma once
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace prefixd::cache {

enum class Admission { kNothing, kLikelyReuse, kAll };

// Not thread-safe.
class WriteBudget {
 public:
  static constexpr double kEverythingAbove = 0.75;  // of a full bucket that fills with requests
  struct Limits {
    uint64_t bytes_per_s = 0;  // 0: no limit
    std::chrono::seconds window{0};
    double share = 0;  // of the bytes asked for; 0: no limit
  };
  // It starts with what a whole window allows, and with nothing of the share.
  WriteBudget(const Limits& limits, const base::Clock* clock);

  // What the SSD holds may be saved up; `bytes` at once, of an SSD that is to be filled first, and
  // so what a budget grows by.
  void SaveUpTo(uint64_t bytes);
  void Add(uint64_t bytes);
  // Pages that a request found or that were stored.
  void Asked(uint64_t bytes);
  void Take(uint64_t bytes);  // may overdraw: what is admitted is written
  Admission admits();
  bool has_share() const { return limits_.share > 0; }
  // Returns what is left in the smaller bucket; all ones where nothing is limited.
  uint64_t left_bytes();

 private:
  void Refill();

  const Limits limits_;
  const double window_bytes_;
  const base::Clock* const clock_;
  int64_t refilled_us_;
  double left_;                  // of the rate
  double most_ = 0, saved_ = 0;  // of the share
};

}  // namespace prefixd::cache
