// Threads for work that waits or takes long: what a caller's own thread must not do.
#pragma once
#include <cstddef>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace prefixd::base {

// Thread-safe. A thread is started when work comes and all others are busy, as far as the system
// gives one, and stays. Work must not throw. The child of a fork has none of the threads.
class Threads {
 public:
  // `name`: what the kernel calls the threads; at most 15 characters. `most`: how many there may
  // be. `least`, at most 1: how many there are from the start. Throws std::system_error if the
  // system does not give that one.
  Threads(std::string name, size_t most, size_t least = 1);
  // Finishes all work that was accepted, and what that work posts, unless Stop() dropped it.
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  using Work = std::function<void()>;
  // Begins at once. Returns false, and does nothing, if all threads are busy and no other starts.
  bool TryRun(Work work) PREFIXD_EXCLUDES(mutex_);
  // Begins when a thread is free. Returns false, and does nothing, after Stop() and if there is no
  // thread at all. `owner` is a name for Withdraw().
  bool Post(Work work, const void* owner = nullptr) PREFIXD_EXCLUDES(mutex_);
  // Drops the owner's work that has not begun.
  void Withdraw(const void* owner) PREFIXD_EXCLUDES(mutex_);
  // Drops work that has not begun and waits for the rest. Must not be called from a thread of it.
  void Stop() PREFIXD_EXCLUDES(mutex_);

  size_t most() const { return most_; }

 private:
  // Returns true if a thread is free for more work, or was started.
  bool HasFree() PREFIXD_REQUIRES(mutex_);
  void Add(Work work, const void* owner) PREFIXD_REQUIRES(mutex_);
  void Join(bool drop) PREFIXD_EXCLUDES(mutex_);
  void Loop() PREFIXD_EXCLUDES(mutex_);

  struct Waiting {
    Work work;
    const void* owner;
  };

  const std::string name_;
  const size_t most_;
  Mutex mutex_;
  CondVar wake_;
  std::list<Waiting> queue_ PREFIXD_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ PREFIXD_GUARDED_BY(mutex_);
  size_t unfinished_ PREFIXD_GUARDED_BY(mutex_) = 0;  // queued or running
  bool stop_ PREFIXD_GUARDED_BY(mutex_) = false;      // threads end when the queue is empty
  bool dropped_ PREFIXD_GUARDED_BY(mutex_) = false;   // by Stop(): no more work is taken
};

}  // namespace prefixd::base
