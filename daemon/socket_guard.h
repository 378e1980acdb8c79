// The right to listen on a unix socket's path: two daemons never share one, and a socket file is
// taken over only when nobody answers on it. (gRPC alone would unlink whatever stands there.)
#pragma once
#include <string>

#include "absl/status/statusor.h"

#include "base/file_lock.h"

namespace prefixd::daemon {

// Not thread-safe. Holds PATH.lock until it is destroyed; the kernel frees the lock of a daemon
// that died. The lock file stays: removing it would let two daemons lock two files of one name.
class SocketGuard {
 public:
  // Locks PATH.lock, removes a dead socket. FailedPrecondition: the folder is not there, another
  // daemon owns the path, or a file that is not a socket stands there. InvalidArgument: the path is
  // longer than a unix socket's may be. Unavailable: the lock or the socket is still in use after
  // `wait`, although no living process is known to have it.
  static absl::StatusOr<SocketGuard> Claim(const std::string& path,
                                           const base::LockWait& wait = LoggedWait());
  // Returns the usual wait, which the log tells of.
  static base::LockWait LoggedWait();
  // Returns InvalidArgument if `path` is longer than a unix socket's may be.
  static absl::Status CheckLength(const std::string& path);
  ~SocketGuard();
  SocketGuard(SocketGuard&& other) noexcept;
  SocketGuard& operator=(SocketGuard&& other) noexcept;

 private:
  explicit SocketGuard(int fd) : fd_(fd) {}
  int fd_;  // of the lock file, owned; -1 = moved from
};

}  // namespace prefixd::daemon
