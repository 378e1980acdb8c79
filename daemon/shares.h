// How many of the daemon's threads one session, and one host behind TCP, may keep at a time: never
// more than it leaves to others. Alone it gets a half of them. The same of sessions, by process or
// host.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "block/ids.h"

namespace prefixd::daemon {

// Thread-safe.
class Shares {
 public:
  // One thread; given back with the last copy.
  using Share = std::shared_ptr<void>;

  explicit Shares(size_t most) : most_(most) {}
  // nullptr: the session, or its host, has its share. `peer` as gRPC names it; those on a unix
  // socket have no host. Must outlive what it gives.
  Share Take(block::SessionId session, const std::string& peer) PREFIXD_EXCLUDES(mutex_);
  // For what no session asks for: of a process, or a host, of this name. nullptr: all are taken, or
  // it has its share.
  Share TakeAs(const std::string& owner) PREFIXD_EXCLUDES(mutex_);
  size_t taken() const PREFIXD_EXCLUDES(mutex_);
  size_t most() const { return most_; }

 private:
  bool Fits(size_t own) const PREFIXD_REQUIRES(mutex_) { return own < most_ - all_; }
  void GiveBack(block::SessionId session, const std::string& host) PREFIXD_EXCLUDES(mutex_);
  void GiveBackOf(const std::string& host) PREFIXD_EXCLUDES(mutex_);

  const size_t most_;
  mutable base::Mutex mutex_;
  size_t all_ PREFIXD_GUARDED_BY(mutex_) = 0;  // at most most_
  std::map<block::SessionId, size_t> sessions_ PREFIXD_GUARDED_BY(mutex_);
  std::map<std::string, size_t> hosts_ PREFIXD_GUARDED_BY(mutex_);
};

// "ipv4:10.0.0.7" of "ipv4:10.0.0.7:4711"; empty of one on a unix socket.
std::string HostOf(const std::string& peer);

}  // namespace prefixd::daemon
