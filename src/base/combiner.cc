#include "base/combiner.h"

#include <chrono>
#include <thread>

namespace prefixd::base {
namespace {

using std::chrono::steady_clock;

// For how long and for how many one thread runs the steps of others: meanwhile it is late itself,
// and those who want the mutex itself wait, too.
constexpr std::chrono::microseconds kLongest{500};
constexpr int kMostSteps = 8;
// How long a thread looks whether its step was run, on many cores. A thread that sleeps needs tens
// of microseconds to wake, in which nothing runs if the mutex was given to it.
constexpr std::chrono::microseconds kLookFor{400};
constexpr int kTryEvery = 32;    // looks: each try takes the mutex's cache line from who holds it
constexpr int kClockEvery = 16;  // looks
// Looks, about ten microseconds. Then who looks leaves its core to any other thread that can run:
// it may be the one that has the mutex.
constexpr int kYieldAfter = 256;
// How long a thread sleeps before it tries the mutex, how often.
constexpr std::chrono::milliseconds kSleep{1};
constexpr int kSleeps = 5;

// Numbers the threads that ask, from 0 on.
size_t ThreadNumber() {
  static std::atomic<size_t> threads{0};
  thread_local const size_t number = threads.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace

void Combiner::Run(absl::FunctionRef<void()> step) {
  if (TryLock()) {
    step();
    return RunOthersAndUnlock();
  }
  Waiting mine{.step = step, .place = &places_[ThreadNumber() % places_.size()]};
  mine.next = arrived_.load(std::memory_order_relaxed);
  while (!arrived_.compare_exchange_weak(mine.next, &mine, std::memory_order_release,
                                         std::memory_order_relaxed)) {
  }
  if (looks_ && (LookFor(&mine) || SleepFor(&mine))) return;
  while (!mine.done.load(std::memory_order_acquire)) {
    mutex_->lock();
    RunOthersAndUnlock();
  }
}

bool Combiner::LookFor(Waiting* mine) {
  const auto end = steady_clock::now() + kLookFor;
  for (int looks = 1; !mine->done.load(std::memory_order_acquire); ++looks) {
    if (looks % kTryEvery == 0 && TryLock()) RunOthersAndUnlock();
    if (looks % kClockEvery == 0 && steady_clock::now() >= end) return false;
    looks < kYieldAfter ? Pause() : std::this_thread::yield();
  }
  return true;
}

// Not in the mutex's own lock(): a thread that slept there would lose the mutex again and again to
// those that look, long after its step was run.
bool Combiner::SleepFor(Waiting* mine) {
  Place& place = *mine->place;
  for (int sleeps = 0; sleeps < kSleeps; ++sleeps) {
    {
      const base::MutexLock lock(place.mutex);
      ++place.sleepers;
      const Deadline end = steady_clock::now() + kSleep;
      while (!mine->done.load() && place.woken.WaitUntil(place.mutex, end)) {
      }
      --place.sleepers;
    }
    if (mine->done.load()) return true;
    if (TryLock()) RunOthersAndUnlock();
  }
  return false;
}

// A sleeper counts itself before it looks at `done`; this sets `done` before it looks at the count.
void Combiner::Finish(Waiting* waiting) {
  Place& place = *waiting->place;  // before `done`: `waiting` may be gone then
  waiting->step();
  waiting->done.store(true);
  if (place.sleepers.load() == 0) return;
  const base::MutexLock lock(place.mutex);
  place.woken.NotifyAll();
}

void Combiner::RunOthersAndUnlock() {
  const auto end = steady_clock::now() + kLongest;
  int steps = 0;
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
    if (ready_ == nullptr) break;
    Waiting* const first = ready_;
    ready_ = first->next;
    Finish(first);
  } while (++steps < kMostSteps && steady_clock::now() < end && !mutex_->IsOverdue());
  mutex_->unlock();
}

}  // namespace prefixd::base
