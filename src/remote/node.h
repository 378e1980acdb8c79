// One server: its connections, and whether it is asked at all.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "remote/breaker.h"
#include "remote/connection.h"
#include "remote/remote_store.h"

namespace prefixd::remote {

// Thread-safe. Holds one mutex and calls nothing that waits while it holds it.
class Node {
 public:
  static constexpr size_t kMostIdle = 32;

  // All that is pointed to must outlive it.
  Node(Endpoint address, const Login* login, Resolver* resolver, const base::Clock* clock,
       uint64_t seed)
      : address_(std::move(address)), login_(login), resolver_(resolver), breaker_(clock, seed) {}

  const Endpoint& address() const { return address_; }
  bool open() const { return open_; }
  // Returns a connection to use alone: one that is free, or a new one that begins to connect.
  std::unique_ptr<Connection> Take() PREFIXD_EXCLUDES(mutex_);
  // Gives a connection back on which nothing is under way.
  void Give(std::unique_ptr<Connection> connection) PREFIXD_EXCLUDES(mutex_);

  void Succeeded() PREFIXD_EXCLUDES(mutex_);
  void Failed(const std::string& why) PREFIXD_EXCLUDES(mutex_);
  bool TakeProbe() PREFIXD_EXCLUDES(mutex_);
  void Probed(bool well, const std::string& why) PREFIXD_EXCLUDES(mutex_);
  int64_t next_try_us() const PREFIXD_EXCLUDES(mutex_);

  // Without in_flight_bytes.
  NodeStatus Status() const PREFIXD_EXCLUDES(mutex_);

 private:
  void Note() PREFIXD_REQUIRES(mutex_);

  const Endpoint address_;
  const Login* const login_;
  Resolver* const resolver_;
  mutable base::Mutex mutex_;
  Breaker breaker_ PREFIXD_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Connection>> idle_ PREFIXD_GUARDED_BY(mutex_);
  std::atomic<bool> open_{false};  // as the breaker says
};

}  // namespace prefixd::remote
