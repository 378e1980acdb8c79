// Requests that are too long for gRPC's callback threads, which serve everybody. LongRequests
// parses and serves them on threads of its own, in the order in which they came, as many at a time
// as fit into the memory set aside for them.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>

#include "base/mutex.h"
#include "base/threads.h"

namespace prefixd::daemon {

// Thread-safe. A request that waits holds only its message; Dispatch bounds how much all hold. The
// destructor finishes every request that was posted.
class LongRequests {
 public:
  using Work = std::function<void()>;

  // A callback thread serves requests of at most these sizes, as a message and when parsed: in
  // about a millisecond.
  static constexpr uint64_t kShortMessageBytes = uint64_t{256} << 10;
  static constexpr uint64_t kShortUnfoldedBytes = uint64_t{1} << 20;

  // Serves at most `threads` requests at a time, with at most `most_bytes` of memory together.
  LongRequests(int threads, uint64_t most_bytes)
      : most_bytes_(most_bytes), threads_("prefixd long", threads) {}

  // `bytes`: memory that the request takes, at most `most_bytes`.
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
  uint64_t bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;  // of the requests that were started
  std::deque<Request> waiting_ PREFIXD_GUARDED_BY(mutex_);
  base::Threads threads_;  // last, so destroyed first
};

}  // namespace prefixd::daemon
