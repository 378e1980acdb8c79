// Tells one thread that there may be work for it.
#pragma once
#include <chrono>
#include <optional>

#include "base/mutex.h"

namespace prefixd::cache {

// Thread-safe; one thread waits.
class WorkSignal {
 public:
  void Notify() PREFIXD_EXCLUDES(mutex_);
  // Every wait returns false from now on.
  void Stop() PREFIXD_EXCLUDES(mutex_);
  bool stopped() const PREFIXD_EXCLUDES(mutex_);
  // Waits until Notify was called since the last wait, or until `limit` has passed. False: stopped.
  bool Wait(std::optional<std::chrono::milliseconds> limit = std::nullopt) PREFIXD_EXCLUDES(mutex_);
  // Whether Notify was called since the last wait; for who runs the work without a thread.
  bool Poll() PREFIXD_EXCLUDES(mutex_);
  // Waits for the whole time, whatever is notified; the next Wait hears of it. False: stopped.
  bool Sleep(std::chrono::milliseconds time) PREFIXD_EXCLUDES(mutex_);

 private:
  mutable base::Mutex mutex_;
  base::CondVar wake_;
  bool notified_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stopped_ PREFIXD_GUARDED_BY(mutex_) = false;
};

}  // namespace prefixd::cache
