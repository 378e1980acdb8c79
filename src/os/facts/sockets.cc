#include "os/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace prefixd::os {
namespace {

template <typename T>
void SetOption(int socket, int level, int option, T value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

}  // namespace

std::string FolderForSockets() { return ""; }

std::optional<SocketPeer> PeerOf(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return std::nullopt;
  return SocketPeer{.pid = peer.pid, .uid = peer.uid, .gid = peer.gid};
}

std::vector<gid_t> GroupsOfPeer(int socket, size_t most) {
  std::vector<gid_t> groups(most);
  auto bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) != 0) return {};
  groups.resize(bytes / sizeof(gid_t));
  return groups;
}

void WatchPeer(int socket, const Watch& watch) {
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, watch.idle_s);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, watch.interval_s);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, watch.count);
  SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, watch.unacknowledged_ms);
}

}  // namespace prefixd::os
