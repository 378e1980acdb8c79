// How long a worker is waited for that is to unpin slabs.
//
// A value; the arena's mutex guards it.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

namespace prefixd::ram {

// Each time that the worker was late halves the time that it has, so that one which never unpins
// makes others wait twice the full time at most. For every kInTime slabs that it unpinned in time
// it doubles again, up to the full time.
class UnpinPatience {
 public:
  std::chrono::nanoseconds Of(std::chrono::nanoseconds full) const { return full / (1 << halved_); }
  void Late() {
    halved_ = std::min(halved_ + 1, kMostHalved);
    in_time_ = 0;
  }
  void InTime() {
    if (halved_ == 0 || ++in_time_ < kInTime) return;
    --halved_;
    in_time_ = 0;
  }

 private:
  static constexpr int kMostHalved = 20, kInTime = 16;
  int halved_ = 0, in_time_ = 0;
};

}  // namespace prefixd::ram
