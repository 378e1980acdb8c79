// The side socket: hands workers the arena's and their staging's descriptors, which gRPC cannot.
//
// A SEQPACKET unix socket, mode 0660, one exchange a connection. In: the 16 bytes of Attached.key.
// Out: the same 16 bytes with two or three descriptors by SCM_RIGHTS (the arena, read-only; the
// session's lock; staging), or a text that says what is wrong, and none.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

#include "base/peer.h"
#include "cache/cache.h"
#include "daemon/socket_guard.h"

namespace prefixd::daemon {

// "/run/prefixd/prefixd.sock" -> "/run/prefixd/prefixd.fd"; without ".sock" it is appended.
std::string FdSocketPath(const std::string& socket);

// One thread of its own serves it until it is destroyed, which removes the socket. A peer that says
// nothing is dropped after a second; nothing that a peer does stops it.
class FdSocket {
 public:
  using OpenFiles = std::function<absl::StatusOr<cache::SessionFiles>(const cache::SessionKey& key,
                                                                      const base::Peer& peer)>;

  // `open` is called on the socket's thread with a key and who shows it, for peers that may: the
  // daemon's own user, root, and members of the socket's group. Errors as SocketGuard::Claim.
  static absl::StatusOr<std::unique_ptr<FdSocket>> Listen(const std::string& path, OpenFiles open);
  ~FdSocket();
  FdSocket(const FdSocket&) = delete;
  FdSocket& operator=(const FdSocket&) = delete;

 private:
  class Server;
  FdSocket(SocketGuard guard, std::string path, int listener, int wake, OpenFiles open);

  const SocketGuard guard_;
  const std::string path_;
  const int listener_;
  const int wake_;  // an eventfd: readable once the thread is to stop
  const OpenFiles open_;
  std::thread thread_;
};

}  // namespace prefixd::daemon
