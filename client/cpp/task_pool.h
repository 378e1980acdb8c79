// A few threads for what must not block the engine: loading and storing pages.
//
// Thread-safe. Threads start when work waits for them and stay until Stop().
#pragma once
#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace prefixd::client {

class TaskPool {
 public:
  explicit TaskPool(size_t max_threads) : max_threads_(max_threads) {}
  ~TaskPool() { Stop(); }

  // Returns false if the pool is stopped or no thread can be had: the task will not run.
  bool Submit(std::function<void()> task) PREFIXD_EXCLUDES(mutex_);
  // Waits until everything submitted has run. Returns false at the deadline.
  bool Drain(base::Deadline deadline) PREFIXD_EXCLUDES(mutex_);
  // Drops tasks that have not begun and waits for the others. Must not be called from a task.
  void Stop() PREFIXD_EXCLUDES(mutex_);

 private:
  void Work() PREFIXD_EXCLUDES(mutex_);

  const size_t max_threads_;
  base::Mutex mutex_;  // guards what follows
  base::CondVar changed_;
  std::deque<std::function<void()>> waiting_ PREFIXD_GUARDED_BY(mutex_);
  size_t idle_ PREFIXD_GUARDED_BY(mutex_) = 0;
  size_t running_ PREFIXD_GUARDED_BY(mutex_) = 0;
  bool stopped_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::client
