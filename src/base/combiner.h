// Combiner runs short steps under a mutex that many threads want at the same time. Whoever holds
// the mutex runs the steps of those who wait, too: what the steps touch stays in the caches of one
// core, and a thread whose step is short need not be woken for it. (Flat combining: Hendler, Incze,
// Shavit, Tzafrir, 2010.)
//
// Thread-safe. The mutex may be locked by others as well. Steps must not throw.
#pragma once
#include <atomic>

#include "absl/functional/function_ref.h"

#include "base/mutex.h"
#include "base/spin.h"

namespace prefixd::base {

class Combiner {
 public:
  // `mutex` outlives this. `looks`: a thread that waits looks for a while before it sleeps.
  explicit Combiner(Mutex* mutex, bool looks = ManyCores()) : mutex_(mutex), looks_(looks) {}
  Combiner(const Combiner&) = delete;
  Combiner& operator=(const Combiner&) = delete;

  // Runs `step` once under the mutex, on this thread or on one that holds it, and returns after it.
  // Requires: this thread does not hold the mutex.
  void Run(absl::FunctionRef<void()> step);

 private:
  struct Waiting {
    absl::FunctionRef<void()> step;
    Waiting* next = nullptr;
    std::atomic<bool> done{false};  // set last: `this` may be gone then
  };

  bool LookFor(Waiting* mine);  // false: its step was not run in time
  // Runs what waits, for about kLongest. Requires: the mutex.
  void RunOthers();
  static void Finish(Waiting* waiting) {
    waiting->step();
    waiting->done.store(true, std::memory_order_release);
  }

  Mutex* const mutex_;
  const bool looks_;
  std::atomic<Waiting*> arrived_{nullptr};  // newest first
  Waiting* ready_ = nullptr;                // guarded by *mutex_; oldest first
};

}  // namespace prefixd::base
