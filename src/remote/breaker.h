// Decides whether a server that failed is asked again.
//
// Closed, it lets everything pass. The third failure in a row opens it for 100 ms, and each failure
// after that for twice as long, up to 10 s; a random part, so that hosts do not come back at once.
// When that time is over one probe is due. After a probe that went well the next call decides: a
// failure opens it again, for longer; a success closes it.
//
// Not thread-safe.
#pragma once
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "base/clock.h"

namespace prefixd::remote {

class Breaker {
 public:
  static constexpr int kFailures = 3;
  static constexpr int64_t kFirstWaitUs = 100'000, kLongestWaitUs = 10'000'000;

  // `clock` must outlive it.
  Breaker(const base::Clock* clock, uint64_t seed) : clock_(clock), random_(seed) {}

  bool open() const { return open_; }
  // True once for each probe that is due; then Probed() must be called.
  bool TakeProbe() {
    if (!open_ || probing_ || clock_->MonotonicMicros() < next_try_us_) return false;
    return probing_ = true;
  }
  void Probed(bool well, const std::string& why) {
    probing_ = false;
    if (!well) return Open(why);
    open_ = false;
    failures_ = kFailures - 1;
  }

  void Succeeded() {
    if (open_) return;  // it began before
    failures_ = 0;
    wait_us_ = kFirstWaitUs;
  }
  void Failed(const std::string& why) {
    why_ = why;
    failed_us_ = clock_->MonotonicMicros();
    if (!open_ && ++failures_ >= kFailures) Open(why);
  }

  const std::string& why() const { return why_; }
  int64_t failed_us() const { return failed_us_; }
  int64_t next_try_us() const { return next_try_us_; }

 private:
  void Open(const std::string& why) {
    open_ = true;
    why_ = why;
    failed_us_ = clock_->MonotonicMicros();
    next_try_us_ =
        failed_us_ + std::uniform_int_distribution<int64_t>(wait_us_ * 3 / 4, wait_us_)(random_);
    wait_us_ = std::min(2 * wait_us_, kLongestWaitUs);
  }

  const base::Clock* const clock_;
  std::mt19937_64 random_;
  bool open_ = false, probing_ = false;
  int failures_ = 0;  // in a row
  int64_t wait_us_ = kFirstWaitUs;
  int64_t failed_us_ = 0, next_try_us_ = 0;
  std::string why_;
};

}  // namespace prefixd::remote
