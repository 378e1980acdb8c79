#include "daemon/threads.h"

#include <pthread.h>

#include <system_error>
#include <utility>

namespace prefixd::daemon {

Threads::Threads(std::string name, int most)
    : name_(std::move(name)), most_(static_cast<size_t>(most)) {
  base::MutexLock lock(mutex_);
  threads_.emplace_back([this] { Loop(); });
}

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
  if (!HasFree()) return false;
  Add(std::move(work));
  return true;
}

void Threads::Post(Work work) {
  base::MutexLock lock(mutex_);
  (void)HasFree();  // starts a thread if it can, else the work waits for one
  Add(std::move(work));
}

bool Threads::HasFree() {
  if (unfinished_ < threads_.size()) return true;
  if (threads_.size() >= most_) return false;
  try {
    threads_.emplace_back([this] { Loop(); });
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

void Threads::Add(Work work) {
  queue_.push_back(std::move(work));
  ++unfinished_;
  wake_.NotifyOne();
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
    work = nullptr;  // frees what it captured, outside the mutex
    mutex_.lock();
    --unfinished_;
  }
}

}  // namespace prefixd::daemon
