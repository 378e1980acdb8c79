#include "os/sockets.h"

#include <libproc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/ucred.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>

namespace prefixd::os {
namespace {

void SetOption(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

// Fills `peer` with who made the connection, or listened for it. Returns false if it is no unix
// socket.
bool CredentialsOf(int socket, xucred* peer) {
  socklen_t bytes = sizeof(*peer);
  return getsockopt(socket, SOL_LOCAL, LOCAL_PEERCRED, peer, &bytes) == 0 &&
         peer->cr_version == XUCRED_VERSION;
}

// Returns the count of its kind that the kernel gave an internet socket; another kind's address.
uint64_t GenerationOf(int fd) {
  socket_fdinfo info = {};
  if (proc_pidfdinfo(getpid(), fd, PROC_PIDFDSOCKETINFO, &info, sizeof(info)) != sizeof(info)) {
    return 0;
  }
  switch (info.psi.soi_kind) {
    case SOCKINFO_TCP:
      return info.psi.soi_proto.pri_tcp.tcpsi_ini.insi_gencnt;
    case SOCKINFO_IN:
      return info.psi.soi_proto.pri_in.insi_gencnt;
    default:
      return info.psi.soi_so;
  }
}

}  // namespace

std::optional<SocketPeer> PeerOf(int socket) {
  xucred peer = {};
  pid_t pid = 0;
  socklen_t bytes = sizeof(pid);
  if (!CredentialsOf(socket, &peer) ||
      getsockopt(socket, SOL_LOCAL, LOCAL_PEERPID, &pid, &bytes) != 0) {
    return std::nullopt;
  }
  return SocketPeer{.pid = pid, .uid = peer.cr_uid, .gid = peer.cr_groups[0]};
}

std::vector<gid_t> GroupsOfPeer(int socket, size_t most) {
  xucred peer = {};
  if (!CredentialsOf(socket, &peer)) return {};
  const auto count = static_cast<size_t>(std::clamp<int>(peer.cr_ngroups, 0, NGROUPS));
  if (count > most) return {};
  return {peer.cr_groups, peer.cr_groups + count};
}

// A unix socket has an inode, counted up, and no other has one.
uint64_t SocketId(int fd) {
  struct stat status = {};
  if (fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode)) return 0;
  const uint64_t inode = status.st_ino;
  return inode != 0 ? inode << 1 : GenerationOf(fd) << 1 | 1;
}

void WatchPeer(int socket, const Watch& watch) {
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPALIVE, watch.idle_s);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, watch.interval_s);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, watch.count);
  SetOption(socket, IPPROTO_TCP, TCP_RXT_CONNDROPTIME,
            static_cast<int>((watch.unacknowledged_ms + 999) / 1000));
}

}  // namespace prefixd::os
