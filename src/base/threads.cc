#include "base/threads.h"

#include <system_error>
#include <utility>

#include "os/process.h"

namespace prefixd::base {

Threads::Threads(std::string name, size_t most, size_t least)
    : name_(std::move(name)), most_(most) {
  MutexLock lock(mutex_);
  if (least != 0) threads_.emplace_back([this] { Loop(); });
}

Threads::~Threads() { Join(/*drop=*/false); }

bool Threads::TryRun(Work work) {
  MutexLock lock(mutex_);
  if (stop_ || !HasFree()) return false;
  Add(std::move(work), nullptr);
  return true;
}

bool Threads::Post(Work work, const void* owner) {
  MutexLock lock(mutex_);
  if (dropped_) return false;
  // Without a free thread the work waits for one. While the destructor waits, only work posts
  // more, and its own thread takes that.
  if (!stop_ && !HasFree() && threads_.empty()) return false;
  Add(std::move(work), owner);
  return true;
}

void Threads::Withdraw(const void* owner) {
  MutexLock lock(mutex_);
  unfinished_ -= std::erase_if(queue_, [&](const Waiting& it) { return it.owner == owner; });
}

void Threads::Stop() { Join(/*drop=*/true); }

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

void Threads::Add(Work work, const void* owner) {
  queue_.push_back({std::move(work), owner});
  ++unfinished_;
  wake_.NotifyOne();
}

void Threads::Join(bool drop) {
  std::vector<std::thread> threads;
  std::list<Waiting> dropped;  // freed outside the mutex
  {
    MutexLock lock(mutex_);
    stop_ = true;
    dropped_ = dropped_ || drop;
    if (drop) dropped.swap(queue_);
    threads.swap(threads_);
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
}

void Threads::Loop() {
  os::NameThisThread(name_.c_str());
  MutexLock lock(mutex_);
  for (;;) {
    while (queue_.empty() && !stop_) wake_.Wait(mutex_);
    if (queue_.empty()) return;
    Work work = std::move(queue_.front().work);
    queue_.pop_front();
    mutex_.unlock();
    work();
    work = nullptr;  // frees what it captured, outside the mutex
    mutex_.lock();
    --unfinished_;
  }
}

}  // namespace prefixd::base
