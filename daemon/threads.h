// Threads for work that waits: gRPC's own few callback threads must never.
#pragma once
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace prefixd::daemon {

// Thread-safe. One thread is there from the start; more are started when all others are busy, as
// far as the system gives them, and stay. The destructor finishes what was taken.
class Threads {
 public:
  // `name`: of its threads, as the kernel shows it; at most 15 characters. Throws std::system_error
  // where the system gives no thread.
  Threads(std::string name, int most);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  using Work = std::function<void()>;
  // Begins at once. False, and nothing happens: all threads are busy, and there is no other.
  bool TryRun(Work work) PREFIXD_EXCLUDES(mutex_);
  // Begins when a thread is free. For work that must be done and whose amount others bound.
  void Post(Work work) PREFIXD_EXCLUDES(mutex_);

  size_t most() const { return most_; }

 private:
  // A thread is free for one more, or was started.
  bool HasFree() PREFIXD_REQUIRES(mutex_);
  void Add(Work work) PREFIXD_REQUIRES(mutex_);
  void Loop() PREFIXD_EXCLUDES(mutex_);

  const std::string name_;
  const size_t most_;
  base::Mutex mutex_;
  base::CondVar wake_;
  std::deque<Work> queue_ PREFIXD_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ PREFIXD_GUARDED_BY(mutex_);
  size_t unfinished_ PREFIXD_GUARDED_BY(mutex_) = 0;  // queued or running
  bool stop_ PREFIXD_GUARDED_BY(mutex_) = false;
};

}  // namespace prefixd::daemon
