// Which spaces have floors, ceilings or a time to live, and how old the stamps of the index are.
// The index keeps floors when it evicts; room/keep_limits.cc keeps the rest, whenever something is
// asked or stored, so that no thread is needed for it.
#pragma once
#include <atomic>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "base/mutex.h"
#include "block/answer.h"

namespace prefixd::cache {

// What all floors of a tier together may be.
inline uint64_t MostFloorBytes(uint64_t tier_bytes) { return tier_bytes / 10 * 8; }

// Limits as they stand in the store, under kLimitsKey and the space's id in hex. DecodeLimits
// returns zeros for what this version cannot read.
inline constexpr char kLimitsKey[] = "limits/";
std::string EncodeLimits(const block::SpaceLimits& limits);
block::SpaceLimits DecodeLimits(const std::string& text);

struct TierFloor {
  const char* tier;
  uint64_t floor_bytes, ceiling_bytes;
  uint64_t others_bytes;  // floors of other spaces
  uint64_t tier_bytes;
};
// InvalidArgument if the floor is above the ceiling; ResourceExhausted if all floors are too much.
absl::Status CheckFloor(const TierFloor& floor);
// ResourceExhausted if a tier of another size has no room for the floors that there are.
absl::Status CheckFloorsFit(const char* tier, uint64_t floor_bytes, uint64_t tier_bytes);

// Thread-safe.
class LimitedSpaces {
 public:
  struct Due {
    block::SpaceHandle space;
    block::SpaceLimits limits;
    int64_t unused_before_stamp = 0;  // blocks with a lower stamp are too old
  };

  // Replaces the limits; zeros remove them. `stamp` is the latest of the index.
  void Set(block::SpaceHandle space, const block::SpaceLimits& limits, int64_t now_us,
           int64_t stamp) PREFIXD_EXCLUDES(mutex_);
  bool empty() const { return next_us_ == kNever; }
  // Call it when something is about to be used. True: Take() is due.
  bool IsDue(int64_t now_us);
  // Returns every limited space, and which stamps of it are too old at `now_us`.
  std::vector<Due> Take(int64_t now_us, int64_t stamp) PREFIXD_EXCLUDES(mutex_);
  block::SpaceLimits Of(block::SpaceHandle space) const PREFIXD_EXCLUDES(mutex_);
  struct Floors {
    uint64_t ram_bytes = 0, ssd_bytes = 0;
  };
  Floors FloorsBut(block::SpaceHandle space) const PREFIXD_EXCLUDES(mutex_);  // of all others
  Floors AllFloors() const PREFIXD_EXCLUDES(mutex_) { return FloorsBut({}); }

 private:
  static constexpr int64_t kNever = INT64_MAX;
  // All stamps up to `stamp` were given out at `at_us` or before.
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
