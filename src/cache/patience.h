// How long a call waits: until a point in time, and no longer than its caller does.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/mutex.h"

namespace prefixd::cache {

// A value; cheap to copy. Any thread may set `gave_up` meanwhile, which must outlive this.
class Patience {
 public:
  // Waits are cut into pieces of this, so that a caller who gave up is noticed.
  static constexpr std::chrono::milliseconds kLook{20};

  // NOLINTNEXTLINE(google-explicit-constructor): a deadline alone is a patience.
  Patience(base::Deadline until, const std::atomic<bool>* gave_up = nullptr)
      : until_(until), gave_up_(gave_up) {}

  base::Deadline until() const { return until_; }
  bool gave_up() const { return gave_up_ != nullptr && gave_up_->load(std::memory_order_relaxed); }
  bool over() const { return gave_up() || std::chrono::steady_clock::now() >= until_; }
  // Where the next piece of a wait ends.
  base::Deadline next_look() const {
    return std::min<base::Deadline>(until_, std::chrono::steady_clock::now() + kLook);
  }
  // The same, ended by `until` at the latest.
  Patience Before(base::Deadline until) const {
    return Patience(std::min(until_, until), gave_up_);
  }

 private:
  base::Deadline until_;
  const std::atomic<bool>* gave_up_;
};

}  // namespace prefixd::cache
