// Counts events that may end the wait of a request for tokens that another worker announced.
#pragma once
#include <cstdint>

#include "base/mutex.h"

namespace prefixd::cache {

// Thread-safe.
class Announcements {
 public:
  // Something that was announced was published or given up.
  void Add() PREFIXD_EXCLUDES(mutex_) {
    {
      base::MutexLock lock(mutex_);
      ++count_;
    }
    changed_.NotifyAll();
  }
  uint64_t count() const PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    return count_;
  }
  // Waits until count() is no longer `seen`, or until `until`. May return earlier.
  void Wait(uint64_t seen, base::Deadline until) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    if (count_ == seen) changed_.WaitUntil(mutex_, until);
  }

 private:
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  uint64_t count_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::cache
