// The service's unix socket. If gRPC accepted its connections itself, it would not tell who a peer
// is. So this class accepts them, and gRPC takes over each as a descriptor, which it gives as the
// peer's name: "fd:17".
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

#include "base/peer.h"
#include "daemon/socket_guard.h"
#include "os/wake.h"

namespace prefixd::daemon {

// Returns the descriptor of a connection of the unix socket. `peer` is gRPC's name of the
// connection; nullopt if it came another way.
std::optional<int> DescriptorOf(const std::string& peer);

// Returns who is behind a connection of the unix socket, by the kernel's word. `peer` is gRPC's
// name of the connection; nullopt if it came another way. Requires: a call of that connection is
// being served, so that its descriptor is open, and no other connection has it.
std::optional<base::Peer> UnixPeer(const std::string& peer);
// Returns the address for people: "unix:" for a connection of the unix socket, and an IPv6 address
// in brackets, where gRPC's name of the connection has them escaped.
std::string AddressOf(const std::string& peer);

// Returns whom shares are counted for: the process behind a unix socket, or the host behind TCP.
std::string CallerOf(const std::string& peer);

// Who may connect to a socket; set before anybody can.
struct SocketAccess {
  uint32_t mode = 0660;
  std::optional<gid_t> group = {};  // nullopt = the daemon's
};

// Accepts on one thread of its own. Not thread-safe.
class UnixListener {
 public:
  // Claims the path unless `claim` has it. Errors as SocketGuard::Claim and ListenAt; nobody is
  // accepted before Start.
  static absl::StatusOr<std::unique_ptr<UnixListener>> Listen(
      const std::string& path, const SocketAccess& access = {},
      std::optional<SocketGuard> claim = std::nullopt);
  ~UnixListener() { Close(); }
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  // Called once. Calls `take` on this object's thread; `take` owns each descriptor that it gets.
  void Start(std::function<void(int)> take);
  // Stops accepting and removes the socket; its path stays claimed until destruction.
  void Close();

 private:
  UnixListener(SocketGuard guard, std::string path, int listener);
  void Run(const std::function<void(int)>& take) const;

  const SocketGuard guard_;
  const std::string path_;
  int listener_;   // -1 = closed
  os::Wake wake_;  // set: the thread must stop
  std::thread thread_;
};

// For the sockets of this daemon. Returns a listener of this type at `path` that does not block.
// FailedPrecondition says why there is none. Requires: the path is claimed.
absl::StatusOr<int> ListenAt(const std::string& path, int type, const SocketAccess& access = {});

}  // namespace prefixd::daemon
