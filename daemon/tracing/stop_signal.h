// Tells a thread that waits in poll() to end, and until when it may still finish what it does.
#pragma once
#include <algorithm>
#include <atomic>

#include "base/mutex.h"
#include "os/wake.h"

namespace prefixd::daemon {

// Thread-safe.
class StopSignal {
 public:
  // Called once.
  void Set(base::Deadline until) {
    until_ = until.time_since_epoch().count();
    set_ = true;
    wake_.Set();
  }
  bool set() const { return set_; }
  // Set, and its patience is at its end.
  bool over() const { return Cap(base::Deadline::max()) <= std::chrono::steady_clock::now(); }
  // Readable for ever once it is set.
  int fd() const { return wake_.fd(); }
  // Returns `deadline`, or the end of the patience if that is sooner.
  base::Deadline Cap(base::Deadline deadline) const {
    if (!set_) return deadline;
    return std::min(deadline, base::Deadline(base::Deadline::duration(until_.load())));
  }

 private:
  const os::Wake wake_;
  std::atomic<base::Deadline::rep> until_{0};
  std::atomic<bool> set_{false};
};

}  // namespace prefixd::daemon
