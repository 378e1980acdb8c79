#include "base/combiner.h"

#include <chrono>

namespace prefixd::base {
namespace {

// How long one thread runs the steps of others: those who want the mutex itself wait, too.
constexpr std::chrono::milliseconds kLongest{1};
// How long a thread looks whether its step was run, on many cores. A thread that sleeps needs tens
// of microseconds to wake, in which nothing runs if the mutex was given to it.
constexpr std::chrono::microseconds kLookFor{400};
constexpr int kTryEvery = 4;     // looks: each try takes the mutex's cache line from who holds it
constexpr int kClockEvery = 16;  // looks

}  // namespace

void Combiner::Run(absl::FunctionRef<void()> step) {
  if (mutex_->try_lock()) {
    step();
    RunOthers();
    mutex_->unlock();
    return;
  }
  Waiting mine{.step = step};
  mine.next = arrived_.load(std::memory_order_relaxed);
  while (!arrived_.compare_exchange_weak(mine.next, &mine, std::memory_order_release,
                                         std::memory_order_relaxed)) {
  }
  if (looks_ && LookFor(&mine)) return;
  while (!mine.done.load(std::memory_order_acquire)) {
    mutex_->lock();
    RunOthers();
    mutex_->unlock();
  }
}

bool Combiner::LookFor(Waiting* mine) {
  const auto end = std::chrono::steady_clock::now() + kLookFor;
  for (int looks = 1; !mine->done.load(std::memory_order_acquire); ++looks) {
    if (looks % kTryEvery == 0 && mutex_->try_lock()) {
      RunOthers();
      mutex_->unlock();
    }
    if (looks % kClockEvery == 0 && std::chrono::steady_clock::now() >= end) return false;
    Pause();
  }
  return true;
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
