// Combiner runs short steps under a mutex that many threads want at the same time. Whoever holds
// the mutex runs the steps of those who wait, too: what the steps touch stays in the caches of one
// core, and a thread whose step is short need not be woken for it. (Flat combining: Hendler, Incze,
// Shavit, Tzafrir, 2010.) Whoever waits in the mutex's own lock() for more than a millisecond comes
// first.
//
// Thread-safe. The mutex may be locked by others as well. Steps must not throw.
#pragma once
#include <array>
#include <atomic>
#include <chrono>

#include "absl/functional/function_ref.h"

#include "base/mutex.h"
#include "base/spin.h"

namespace prefixd::base {

class Combiner {
 public:
  // `mutex` outlives this. `looks`: a thread that waits looks for a while before it sleeps.
  explicit Combiner(Mutex* mutex, bool looks = ManyCpus()) : mutex_(mutex), looks_(looks) {}
  Combiner(const Combiner&) = delete;
  Combiner& operator=(const Combiner&) = delete;

  // Runs `step` once under the mutex, on this thread or on one that holds it, and returns after it.
  // Requires: this thread does not hold the mutex.
  void Run(absl::FunctionRef<void()> step);

 private:
  // Where a thread sleeps. Each thread has its place, which few or none share: whoever runs a step
  // wakes one thread, not all that sleep, and has to wait for none of them.
  struct alignas(64) Place {
    std::atomic<int> sleepers{0};
    Mutex mutex;
    CondVar woken;  // a step of one of them was run
  };
  struct Waiting {
    absl::FunctionRef<void()> step;
    Place* place = nullptr;
    Waiting* next = nullptr;
    std::atomic<bool> done{false};  // set last: `this` may be gone then
  };

  bool TryLock() PREFIXD_THREAD_ANNOTATION(try_acquire_capability(true, *mutex_)) {
    return !mutex_->IsOverdue() && mutex_->try_lock();
  }
  // Runs some of what waits. Requires: the mutex.
  void RunOthersAndUnlock() PREFIXD_THREAD_ANNOTATION(release_capability(*mutex_));
  bool LookFor(Waiting* mine);   // false: its step was not run in time
  bool SleepFor(Waiting* mine);  // the same
  void Finish(Waiting* waiting);

  Mutex* const mutex_;
  const bool looks_;
  std::atomic<Waiting*> arrived_{nullptr};  // newest first
  Waiting* ready_ = nullptr;                // guarded by *mutex_; oldest first
  std::array<Place, 64> places_;
};

}  // namespace prefixd::base
