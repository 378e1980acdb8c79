// Threads for work that waits, which gRPC's own few callback threads must never do.
#pragma once
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace prefixd::daemon {

// Thread-safe. One thread is there from the start. More are started when all others are busy, as
// far as the system gives them, and stay. The destructor finishes all work that was accepted.
class Threads {
 public:
  // `name`: what the kernel calls the threads; at most 15 characters. `most`: how many there may
  // be. Throws std::system_error if the system gives no thread.
  Threads(std::string name, int most);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  using Work = std::function<void()>;
  // Begins at once. Returns false, and does nothing, if all threads are busy and no other starts.
  bool TryRun(Work work) PREFIXD_EXCLUDES(mutex_);
  // Begins when a thread is free. For work that must be done and whose amount others bound.
  void Post(Work work) PREFIXD_EXCLUDES(mutex_);

  size_t most() const { return most_; }

 private:
  // Returns true if a thread is free for more work, or was started.
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
