// Names of hosts to addresses, without waiting.
#pragma once
#include <sys/socket.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/threads.h"
#include "os/wake.h"

namespace prefixd::remote {

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t length = 0;
};

// One question. Thread-safe.
class Resolution {
 public:
  Resolution();
  // Readable once there is an answer.
  int fd() const { return done_.fd(); }
  // Returns false while there is no answer. Empty addresses: `why` says why.
  bool Take(std::vector<SocketAddress>* addresses, std::string* why) const PREFIXD_EXCLUDES(mutex_);
  void Set(std::vector<SocketAddress> addresses, std::string why) PREFIXD_EXCLUDES(mutex_);

 private:
  const os::Wake done_;
  mutable base::Mutex mutex_;
  bool known_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::vector<SocketAddress> addresses_ PREFIXD_GUARDED_BY(mutex_);
  std::string why_ PREFIXD_GUARDED_BY(mutex_);
};

// Thread-safe. An IP address is answered at once. Names are asked for on threads of its own, which
// start with the first one; two who ask for the same name at a time share the answer.
class Resolver {
 public:
  static constexpr int kThreads = 2;
  std::shared_ptr<Resolution> Ask(const std::string& host, uint16_t port) PREFIXD_EXCLUDES(mutex_);
  // Waits for the questions that are being asked.
  ~Resolver() = default;

 private:
  base::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Resolution>> asked_ PREFIXD_GUARDED_BY(mutex_);
  base::Threads threads_{"prefixd-names", kThreads, 0};
};

}  // namespace prefixd::remote
