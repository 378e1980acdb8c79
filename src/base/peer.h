// Who is at the other end of a unix socket, as the kernel tells: at its connect, not now.
//
// Thread-safe.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace prefixd::base {

struct Peer {
  // As this process sees it; 0: it is in a pid namespace that is not seen from here.
  uint64_t pid = 0;
  uint32_t uid = 0;            // as this user namespace maps it
  uint64_t pid_namespace = 0;  // in which `pid` is meant
  bool operator==(const Peer&) const = default;
};

// nullopt: no connected unix socket.
std::optional<Peer> PeerOf(int socket);

// Nothing that the kernel told speaks against it: one user, and one pid where both pids are meant
// in one namespace. Two processes of one user that are both not seen from here are not told apart.
bool MayBeSameProcess(const Peer& a, const Peer& b);

// "process 12 of user 1000"; "a process of user 1000 that cannot be seen from here".
std::string Describe(const Peer& peer);

}  // namespace prefixd::base
