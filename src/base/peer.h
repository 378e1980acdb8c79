// The process at the other end of a unix socket, as the kernel recorded it at the connect.
//
// Thread-safe.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace prefixd::base {

struct Peer {
  // As this process sees it; 0 if it is in a pid namespace that is not visible from here.
  uint64_t pid = 0;
  uint32_t uid = 0;            // as this user namespace maps it
  uint64_t pid_namespace = 0;  // the namespace that `pid` belongs to
  bool operator==(const Peer&) const = default;
};

// Returns nullopt if `socket` is not a connected unix socket.
std::optional<Peer> PeerOf(int socket);

// Returns false if the users differ, or if both pids are of one namespace and differ. Does not tell
// two processes of one user apart that are both not visible from here.
bool MayBeSameProcess(const Peer& a, const Peer& b);

// Returns "process 12 of user 1000" or "a process of user 1000 that cannot be seen from here".
std::string Describe(const Peer& peer);

}  // namespace prefixd::base
