// Requests that are too long for gRPC's callback threads, which serve everybody: they are parsed
// and served on threads of their own, in the order in which they came, as many at a time as the
// memory lasts that is set aside for them.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>

#include "base/mutex.h"
#include "daemon/threads.h"

namespace prefixd::daemon {

// Thread-safe. What waits here holds its message alone; Dispatch bounds how much. The destructor
// finishes what was taken.
class LongRequests {
 public:
  using Work = std::function<void()>;

  // No longer than this, and no larger when parsed, is a request that a callback thread serves: in
  // about a millisecond.
  static constexpr uint64_t kShortMessageBytes = uint64_t{256} << 10;
  static constexpr uint64_t kShortUnfoldedBytes = uint64_t{1} << 20;

  // At most `threads` at a time, whose requests take at most `most_bytes` of memory together.
  LongRequests(int threads, uint64_t most_bytes)
      : most_bytes_(most_bytes), threads_("prefixd long", threads) {}

  // `bytes`: of memory, at most `most_bytes`.
  void Post(uint64_t bytes, Work work) PREFIXD_EXCLUDES(mutex_);

 private:
  struct Request {
    uint64_t bytes;
    Work work;
  };
  void StartWhatFits() PREFIXD_REQUIRES(mutex_);
  void Run(const Request& request) PREFIXD_EXCLUDES(mutex_);

  const uint64_t most_bytes_;
  base::Mutex mutex_;
  uint64_t bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;  // of those that were started
  std::deque<Request> waiting_ PREFIXD_GUARDED_BY(mutex_);
  Threads threads_;  // last: goes first
};

}  // namespace prefixd::daemon
