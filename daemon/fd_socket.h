// The side socket hands workers the descriptors of the arena and of staging, which gRPC cannot do.
//
// A unix socket of messages (os/messages.h), mode 0660, one exchange a connection. In: the 16 bytes
// of Attached.key. Out: the same 16 bytes with two or three open files (the arena, read-only; the
// session's lock; staging), or a text that says what is wrong, without files. After the files the
// connection may carry direct calls (direct_calls.h).
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

#include "base/descriptor.h"
#include "base/peer.h"
#include "cache/cache.h"
#include "daemon/socket_guard.h"
#include "os/wake.h"

namespace prefixd::daemon {

// "/run/prefixd/prefixd.sock" -> "/run/prefixd/prefixd.fd". Without ".sock", ".fd" is appended.
std::string FdSocketPath(const std::string& socket);

// Serves on one thread of its own until it is destroyed, which removes the socket. Drops a peer
// that says nothing for a second. Nothing that a peer does stops it.
class FdSocket {
 public:
  using OpenFiles = std::function<absl::StatusOr<cache::SessionFiles>(const cache::SessionKey& key,
                                                                      const base::Peer& peer)>;
  // Takes the connection of a peer that has its files.
  using Keep = std::function<void(base::Descriptor connection, block::SessionId session)>;
  struct Calls {
    OpenFiles open;
    Keep keep = nullptr;  // null: connections are closed
  };

  // Calls `open` on the socket's thread with a key and the peer that sent it, for peers that may:
  // the daemon's own user, root, and members of the socket's group. Errors as SocketGuard::Claim
  // and ListenAt.
  static absl::StatusOr<std::unique_ptr<FdSocket>> Listen(const std::string& path, Calls calls);
  ~FdSocket();
  FdSocket(const FdSocket&) = delete;
  FdSocket& operator=(const FdSocket&) = delete;

 private:
  class Server;
  FdSocket(SocketGuard guard, std::string path, int listener, Calls calls);

  const SocketGuard guard_;
  const std::string path_;
  const int listener_;
  const os::Wake wake_;  // set: the thread must stop
  const Calls calls_;
  std::thread thread_;
};

}  // namespace prefixd::daemon
