#include "daemon/threads.h"

#include <pthread.h>

#include <utility>

namespace prefixd::daemon {

Threads::~Threads() {
  std::vector<std::thread> threads;
  {
    base::MutexLock lock(mutex_);
    stop_ = true;
    threads.swap(threads_);
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
}

bool Threads::TryRun(Work work) {
  base::MutexLock lock(mutex_);
  if (unfinished_ >= most_) return false;
  Add(std::move(work));
  return true;
}

void Threads::Post(Work work) {
  base::MutexLock lock(mutex_);
  Add(std::move(work));
}

void Threads::Add(Work work) {
  queue_.push_back(std::move(work));
  ++unfinished_;
  if (unfinished_ > threads_.size() && threads_.size() < most_) {
    threads_.emplace_back([this] { Loop(); });
  } else {
    wake_.NotifyAll();
  }
}

void Threads::Loop() {
  ::pthread_setname_np(::pthread_self(), name_.c_str());
  base::MutexLock lock(mutex_);
  for (;;) {
    while (queue_.empty() && !stop_) wake_.Wait(mutex_);
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    mutex_.unlock();
    work();
    work = nullptr;  // what it captured goes outside the mutex
    mutex_.lock();
    --unfinished_;
  }
}

}  // namespace prefixd::daemon
