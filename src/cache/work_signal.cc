#include "cache/work_signal.h"

#include <utility>

namespace prefixd::cache {

void WorkSignal::Notify() {
  {
    base::MutexLock lock(mutex_);
    notified_ = true;
  }
  wake_.NotifyAll();
}

void WorkSignal::Stop() {
  {
    base::MutexLock lock(mutex_);
    stopped_ = true;
  }
  wake_.NotifyAll();
}

bool WorkSignal::stopped() const {
  base::MutexLock lock(mutex_);
  return stopped_;
}

bool WorkSignal::Wait(std::optional<std::chrono::milliseconds> limit) {
  base::MutexLock lock(mutex_);
  bool in_time = true;
  const base::Deadline until =
      std::chrono::steady_clock::now() + limit.value_or(std::chrono::milliseconds(0));
  while (!notified_ && !stopped_ && in_time) {
    if (limit.has_value()) {
      in_time = wake_.WaitUntil(mutex_, until);
    } else {
      wake_.Wait(mutex_);
    }
  }
  notified_ = false;
  return !stopped_;
}

bool WorkSignal::Poll() {
  base::MutexLock lock(mutex_);
  return std::exchange(notified_, false);
}

bool WorkSignal::Sleep(std::chrono::milliseconds time) {
  const base::Deadline until = std::chrono::steady_clock::now() + time;
  base::MutexLock lock(mutex_);
  while (!stopped_ && wake_.WaitUntil(mutex_, until)) {
  }
  return !stopped_;
}

}  // namespace prefixd::cache
