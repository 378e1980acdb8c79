// One server: its connections, the breaker that gives it up for a while, and what is on its way.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "remote/connection.h"
#include "remote/redis_options.h"
#include "remote/remote_store.h"

namespace prefixd::remote {

// Bytes on their way, at most so many; one bundle always fits.
//
// Thread-safe.
class Gate {
 public:
  explicit Gate(uint64_t most) : most_(most) {}
  // False: there was no room before the deadline.
  bool Enter(uint64_t bytes, base::Deadline deadline) PREFIXD_EXCLUDES(mutex_);
  void Leave(uint64_t bytes) PREFIXD_EXCLUDES(mutex_);
  uint64_t bytes() const PREFIXD_EXCLUDES(mutex_);

 private:
  const uint64_t most_;
  mutable base::Mutex mutex_;
  base::CondVar left_;
  uint64_t bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

// Gives a server up after kFailures in a row, for a time that doubles, with jitter.
//
// Thread-safe.
class Breaker {
 public:
  static constexpr int kFailures = 3;
  static constexpr int64_t kFirstUs = 100'000, kLongestUs = 10'000'000;

  Breaker(const base::Clock* clock, uint64_t seed) : clock_(clock), random_(seed | 1) {}
  // True: the server is given up, nobody asks it.
  bool open() const PREFIXD_EXCLUDES(mutex_);
  // True, once for each time that it is due: the caller is to try, and says how it went.
  bool TakeProbe() PREFIXD_EXCLUDES(mutex_);
  void Worked() PREFIXD_EXCLUDES(mutex_);
  void Failed(const std::string& why) PREFIXD_EXCLUDES(mutex_);
  void Describe(NodeStatus* status) const PREFIXD_EXCLUDES(mutex_);

 private:
  const base::Clock* const clock_;
  mutable base::Mutex mutex_;
  uint64_t random_ PREFIXD_GUARDED_BY(mutex_);
  int failures_ PREFIXD_GUARDED_BY(mutex_) = 0;
  int64_t wait_us_ PREFIXD_GUARDED_BY(mutex_) = 0;  // 0: closed
  int64_t failed_us_ PREFIXD_GUARDED_BY(mutex_) = 0;
  int64_t next_try_us_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::string why_ PREFIXD_GUARDED_BY(mutex_);
};

// Thread-safe.
class Node {
 public:
  Node(Endpoint endpoint, const RedisOptions* options, std::shared_ptr<TlsContext> tls);

  const Endpoint& endpoint() const { return endpoint_; }
  // A connection: one that is idle, or a new one.
  absl::StatusOr<std::unique_ptr<Connection>> Take(base::Deadline deadline)
      PREFIXD_EXCLUDES(mutex_);
  void GiveBack(std::unique_ptr<Connection> connection) PREFIXD_EXCLUDES(mutex_);
  // Asks it whether it is there, if it is given up and the time has come.
  void Probe() PREFIXD_EXCLUDES(mutex_);
  NodeStatus Status() const;

  Breaker breaker;
  Gate gate;

 private:
  static constexpr size_t kMostIdle = 8;

  const Endpoint endpoint_;
  const RedisOptions* const options_;
  const std::shared_ptr<TlsContext> tls_;
  base::Mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_ PREFIXD_GUARDED_BY(mutex_);
};
using NodePtr = std::shared_ptr<Node>;

}  // namespace prefixd::remote
