// Which spaces have limits, and which stamps of the index are how old. Internal to the room.
#pragma once
#include <atomic>
#include <deque>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "block/answer.h"

namespace prefixd::cache {

// Thread-safe.
// Of all floors of a tier together.
inline uint64_t MostFloorBytes(uint64_t tier_bytes) { return tier_bytes / 10 * 8; }

class LimitedSpaces {
 public:
  struct Due {
    block::SpaceHandle space;
    block::SpaceLimits limits;
    int64_t unused_before_stamp = 0;  // blocks with a lower stamp outlived their time
  };

  // Replaces; zeros remove. `stamp` is the index's latest.
  void Set(block::SpaceHandle space, const block::SpaceLimits& limits, int64_t now_us,
           int64_t stamp) PREFIXD_EXCLUDES(mutex_);
  bool empty() const { return next_us_ == kNever; }
  // Something is about to be used. True: Take() is due.
  bool IsDue(int64_t now_us);
  // Every limited space, with what of it is too old at `now_us`.
  std::vector<Due> Take(int64_t now_us, int64_t stamp) PREFIXD_EXCLUDES(mutex_);
  block::SpaceLimits Of(block::SpaceHandle space) const PREFIXD_EXCLUDES(mutex_);
  struct Floors {
    uint64_t ram_bytes = 0, ssd_bytes = 0;
  };
  Floors FloorsBut(block::SpaceHandle space) const PREFIXD_EXCLUDES(mutex_);  // of all others
  Floors AllFloors() const PREFIXD_EXCLUDES(mutex_) { return FloorsBut({}); }

 private:
  static constexpr int64_t kNever = INT64_MAX;
  // Every stamp up to `stamp` was given out at `at_us` or before.
  struct Mark {
    int64_t at_us = 0;
    int64_t stamp = 0;
  };
  int64_t PeriodMicros() const PREFIXD_REQUIRES(mutex_);
  int64_t StampAt(int64_t us) const PREFIXD_REQUIRES(mutex_);

  mutable base::Mutex mutex_;
  std::map<block::SpaceHandle, block::SpaceLimits> limits_ PREFIXD_GUARDED_BY(mutex_);
  std::deque<Mark> marks_ PREFIXD_GUARDED_BY(mutex_);  // oldest first
  std::atomic<int64_t> next_us_{kNever};
  std::atomic<int64_t> last_use_us_{0};
};

}  // namespace prefixd::cache
