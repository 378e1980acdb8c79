#include "task_pool.h"

#include <system_error>
#include <utility>

namespace prefixd::client {

bool TaskPool::Submit(std::function<void()> task) {
  base::MutexLock lock(mutex_);
  if (stopped_) return false;
  if (waiting_.size() >= idle_ && threads_.size() < max_threads_) {
    try {
      threads_.emplace_back([this] { Work(); });
    } catch (const std::system_error&) {  // no more threads: the existing ones must do
      if (threads_.empty()) return false;
    }
  }
  waiting_.push_back(std::move(task));
  changed_.NotifyAll();
  return true;
}

bool TaskPool::Drain(base::Deadline deadline) {
  base::MutexLock lock(mutex_);
  while (!waiting_.empty() || running_ > 0) {
    if (!changed_.WaitUntil(mutex_, deadline)) return waiting_.empty() && running_ == 0;
  }
  return true;
}

void TaskPool::Stop() {
  std::vector<std::thread> threads;
  {
    base::MutexLock lock(mutex_);
    stopped_ = true;
    waiting_.clear();
    threads.swap(threads_);
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads) thread.join();
}

void TaskPool::Work() {
  while (true) {
    std::function<void()> task;
    {
      base::MutexLock lock(mutex_);
      ++idle_;
      while (waiting_.empty() && !stopped_) changed_.Wait(mutex_);
      --idle_;
      if (stopped_) return;
      task = std::move(waiting_.front());
      waiting_.pop_front();
      ++running_;
    }
    task();
    task = nullptr;  // frees what the task holds before Drain() says that it is done
    base::MutexLock lock(mutex_);
    --running_;
    changed_.NotifyAll();
  }
}

}  // namespace prefixd::client
