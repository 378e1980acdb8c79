// Bounds how many of the daemon's threads one session, and one host behind TCP, may keep at a time,
// and how much memory with them: never more than it leaves to others. Alone it gets a half of the
// threads. Bounds sessions the same way, by process or host.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "block/ids.h"

namespace prefixd::daemon {

// Thread-safe.
class Shares {
 public:
  // One thread and its memory; given back with the last copy.
  using Share = std::shared_ptr<void>;

  // `most_bytes`: memory that goes with the threads.
  explicit Shares(size_t most, uint64_t most_bytes = 0) : most_(most), most_bytes_(most_bytes) {}
  // Takes a share for a session. Returns null if the session, or its host, has its share. `peer` is
  // gRPC's name; a peer on a unix socket has no host. This must outlive what it gives.
  Share Take(block::SessionId session, const std::string& peer, uint64_t bytes = 0)
      PREFIXD_EXCLUDES(mutex_);
  // Takes a share for the process or host of this name, where no session asks for it. Returns null
  // if all are taken, or the owner has its share.
  Share TakeAs(const std::string& owner, uint64_t bytes = 0) PREFIXD_EXCLUDES(mutex_);
  size_t taken() const PREFIXD_EXCLUDES(mutex_);
  size_t most() const { return most_; }

 private:
  struct Sum {
    size_t threads = 0;
    uint64_t bytes = 0;
  };
  Share TakeOf(std::vector<std::string> owners, uint64_t bytes) PREFIXD_EXCLUDES(mutex_);
  bool Fits(const Sum& own, uint64_t bytes) const PREFIXD_REQUIRES(mutex_);
  void GiveBack(const std::vector<std::string>& owners, uint64_t bytes) PREFIXD_EXCLUDES(mutex_);

  const size_t most_;
  const uint64_t most_bytes_;
  mutable base::Mutex mutex_;
  Sum all_ PREFIXD_GUARDED_BY(mutex_);
  std::map<std::string, Sum> owners_ PREFIXD_GUARDED_BY(mutex_);  // only those that have a thread
};

// Returns "ipv4:10.0.0.7" for "ipv4:10.0.0.7:4711"; empty for a peer on a unix socket.
std::string HostOf(const std::string& peer);

}  // namespace prefixd::daemon
