#include "base/peer.h"

#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "base/process.h"
#include "os/sockets.h"

namespace prefixd::base {
namespace {

uint64_t PidNamespace() {
  static const uint64_t known = ThisProcess().pid_namespace;  // a process keeps its own
  return known;
}

}  // namespace

std::optional<Peer> PeerOf(int socket) {
  sockaddr address{};
  socklen_t address_bytes = sizeof(address);
  if (::getpeername(socket, &address, &address_bytes) != 0 || address.sa_family != AF_UNIX) {
    return std::nullopt;
  }
  const std::optional<os::SocketPeer> peer = os::PeerOf(socket);
  if (!peer.has_value()) return std::nullopt;
  return Peer{
      .pid = static_cast<uint64_t>(peer->pid), .uid = peer->uid, .pid_namespace = PidNamespace()};
}

bool MayBeSameProcess(const Peer& a, const Peer& b) {
  return a.uid == b.uid && (a.pid_namespace != b.pid_namespace || a.pid == b.pid);
}

std::string Describe(const Peer& peer) {
  if (peer.pid == 0) {
    return absl::StrCat("a process of user ", peer.uid, " that cannot be seen from here");
  }
  return absl::StrCat("process ", peer.pid, " of user ", peer.uid);
}

}  // namespace prefixd::base
