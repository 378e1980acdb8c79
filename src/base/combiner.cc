#include "base/combiner.h"

#include "base/spin.h"

namespace prefixd::base {
namespace {

// How long one thread runs the steps of others: those who want the mutex itself wait, too.
constexpr std::chrono::milliseconds kLongest{1};
constexpr int kLooks = 2'000;  // 50 to 100 us

}  // namespace

void Combiner::RunWaiting(Waiting* mine) {
  if (mutex_->try_lock()) {
    Finish(mine);
    RunOthers();
    mutex_->unlock();
    return;
  }
  mine->next = arrived_.load(std::memory_order_relaxed);
  while (!arrived_.compare_exchange_weak(mine->next, mine, std::memory_order_release,
                                         std::memory_order_relaxed)) {
  }
  for (int looks = Looks(kLooks); looks > 0; --looks) {
    if (mine->done.load(std::memory_order_acquire)) return;
    if (mutex_->try_lock()) {
      RunOthers();
      mutex_->unlock();
    }
    Pause();
  }
  while (!mine->done.load(std::memory_order_acquire)) {
    mutex_->lock();
    RunOthers();
    mutex_->unlock();
  }
}

void Combiner::RunOthers() {
  const auto end = std::chrono::steady_clock::now() + kLongest;
  do {
    if (ready_ == nullptr) {
      for (Waiting* waiting = arrived_.exchange(nullptr, std::memory_order_acquire);
           waiting != nullptr;) {
        Waiting* const older = waiting->next;
        waiting->next = ready_;
        ready_ = waiting;
        waiting = older;
      }
    }
    if (ready_ == nullptr) return;
    Waiting* const first = ready_;
    ready_ = first->next;
    Finish(first);
  } while (std::chrono::steady_clock::now() < end);
}

}  // namespace prefixd::base
