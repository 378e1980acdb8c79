// Mutex and condition variable of the C++ library, with clang's thread-safety annotations.
//
// Not absl::Mutex: Debian's Abseil is not instrumented, so ThreadSanitizer cannot see it lock.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/lock_order.h"
#include "base/spin.h"

#if defined(__clang__)
#define PREFIXD_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define PREFIXD_THREAD_ANNOTATION(x)
#endif
#define PREFIXD_GUARDED_BY(m) PREFIXD_THREAD_ANNOTATION(guarded_by(m))
#define PREFIXD_REQUIRES(m) PREFIXD_THREAD_ANNOTATION(requires_capability(m))
#define PREFIXD_EXCLUDES(m) PREFIXD_THREAD_ANNOTATION(locks_excluded(m))

namespace prefixd::base {

// The longest time that a mutex was held; a thread may have waited that long. Thread-safe.
class HoldGauge {
 public:
  void Note(std::chrono::nanoseconds held) {
    const auto ns = static_cast<uint64_t>(held.count());
    uint64_t longest = longest_ns_.load(std::memory_order_relaxed);
    while (ns > longest && !longest_ns_.compare_exchange_weak(longest, ns)) {
    }
  }
  std::chrono::nanoseconds longest() const {
    return std::chrono::nanoseconds(longest_ns_.load(std::memory_order_relaxed));
  }

 private:
  std::atomic<uint64_t> longest_ns_{0};
};

class PREFIXD_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  // `name` tells mutexes of one class apart where one is taken while another is held: see
  // lock_order.h. Nothing is given for `file` and `line`.
  explicit Mutex(const char* name = nullptr, const char* file = __builtin_FILE(),
                 uint32_t line = __builtin_LINE())
      : class_(name, file, line) {}
  // Reports each hold time to `gauge`, which must outlive the mutex. Costs two clock reads a hold.
  explicit Mutex(HoldGauge* gauge, const char* name = nullptr, const char* file = __builtin_FILE(),
                 uint32_t line = __builtin_LINE())
      : gauge_(gauge), class_(name, file, line) {}
  void lock() PREFIXD_THREAD_ANNOTATION(acquire_capability()) {
    class_.Locking();
    if (!LocksSoon()) Sleep();
    if (gauge_ != nullptr) since_ = std::chrono::steady_clock::now();
  }
  bool try_lock() PREFIXD_THREAD_ANNOTATION(try_acquire_capability(true)) {
    if (!mutex_.try_lock()) return false;
    class_.Locking();
    if (gauge_ != nullptr) since_ = std::chrono::steady_clock::now();
    return true;
  }
  // Returns true if a thread has waited in lock() for more than kPatience: who need not have the
  // mutex at once should leave it to that thread, since a woken thread loses it to one that runs.
  bool IsOverdue() const {
    const int64_t since = waits_since_.load(std::memory_order_relaxed);
    return since != 0 && Now() - since > kPatience.count();
  }
  void unlock() PREFIXD_THREAD_ANNOTATION(release_capability()) {
    if (gauge_ != nullptr) gauge_->Note(std::chrono::steady_clock::now() - since_);
    mutex_.unlock();
    class_.Unlocked();
  }

 private:
  // Most holds are shorter than putting a thread to sleep and waking it.
  bool LocksSoon() {
    if (mutex_.try_lock()) return true;
    for (int looks = ManyCpus() ? kLooks : 0; looks > 0; --looks) {
      Pause();
      if (mutex_.try_lock()) return true;
    }
    return false;
  }
  void Sleep() {
    if (sleepers_.fetch_add(1) == 0) waits_since_.store(Now(), std::memory_order_relaxed);
    mutex_.lock();
    // First 0: a thread that counts itself as the only sleeper from now on writes its own time.
    waits_since_.store(0, std::memory_order_relaxed);
    // For other sleepers the time begins anew.
    if (sleepers_.fetch_sub(1) > 1) waits_since_.store(Now(), std::memory_order_relaxed);
  }
  static int64_t Now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
  }
  static constexpr int kLooks = 100;  // a few us
  static constexpr std::chrono::nanoseconds kPatience{1'000'000};

  std::mutex mutex_;
  std::atomic<int> sleepers_{0};         // threads that wait in lock()
  std::atomic<int64_t> waits_since_{0};  // one of them, in ns of the steady clock; 0: none
  HoldGauge* const gauge_ = nullptr;
  [[no_unique_address]] const LockClass class_;
  std::chrono::steady_clock::time_point since_;  // guarded by the mutex itself
};

class PREFIXD_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) PREFIXD_THREAD_ANNOTATION(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() PREFIXD_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

using Deadline = std::chrono::steady_clock::time_point;

class CondVar {
 public:
  void Wait(Mutex& mutex) PREFIXD_REQUIRES(mutex) { cv_.wait(mutex); }
  // Returns false if `deadline` has passed.
  bool WaitUntil(Mutex& mutex, Deadline deadline) PREFIXD_REQUIRES(mutex) {
    return cv_.wait_until(mutex, deadline) == std::cv_status::no_timeout;
  }
  void NotifyAll() { cv_.notify_all(); }
  // Use only where every waiting thread would do the same.
  void NotifyOne() { cv_.notify_one(); }

 private:
  std::condition_variable_any cv_;
};

}  // namespace prefixd::base
