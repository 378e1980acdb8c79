// Sockets: how they are made, who is behind them, whether the peer is there.
//
// Thread-safe. Calls that fail say why in errno; descriptors are close-on-exec and the caller's.
#pragma once
#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace prefixd::os {

// Where one user's sockets stand if no XDG_RUNTIME_DIR names a folder; empty if there is no such
// place.
std::string FolderForSockets();

enum class Waits { kYes, kNo };
// As socket(). portable: close-on-exec a moment later, as for AcceptFrom().
int NewSocket(int domain, int type, int protocol, Waits waits);
// Accepts a connection that does not wait. -1 if there is none.
int AcceptFrom(int listener);

struct SocketPeer {
  pid_t pid = 0;  // 0: in a pid namespace that is not visible from here
  uid_t uid = 0;
  gid_t gid = 0;
};
// Returns who is at the other end of a unix socket, as the kernel recorded it at the connect.
std::optional<SocketPeer> PeerOf(int socket);
// Returns the peer's supplementary groups, as far as the system tells: none if it has more than
// `most`.
std::vector<gid_t> GroupsOfPeer(int socket, size_t most);

// Identifies the socket itself, since numbers of descriptors are used again. 0 if `fd` is no
// socket.
uint64_t SocketId(int fd);

// Returns whether the peer has closed its end or the connection broke. portable: a peer that closed
// behind bytes that nobody read is not noticed.
bool HasHungUp(int socket);

// The flag of recvmsg() that takes errors instead of bytes; 0 where there is none.
#if defined(MSG_ERRQUEUE)
inline constexpr int kErrorQueue = MSG_ERRQUEUE;
#else
inline constexpr int kErrorQueue = 0;
#endif

// Makes a TCP connection notice that its peer's host is gone: probes after `idle_s` seconds without
// a byte, every `interval_s`, `count` times; and gives up what is not acknowledged for
// `unacknowledged_ms`. A system without one of them notices later.
struct Watch {
  int idle_s = 15, interval_s = 5, count = 3;
  unsigned unacknowledged_ms = 10'000;
};
void WatchPeer(int socket, const Watch& watch);

}  // namespace prefixd::os
