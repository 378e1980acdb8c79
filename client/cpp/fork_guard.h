// Keeps a child of fork() from having its parent's mappings and connections: a child that goes on
// without exec would keep the session, slot and leases of a worker that died.
//
// Mappings and their descriptors are kept by os/held_file.h. No fork happens before they are.
// Connections to the daemon, which gRPC keeps open, are closed in the child.
//
// A child made by clone() or vfork() without fork()'s handlers is not seen; exec closes everything.
#pragma once
#include <string>

namespace prefixd::client {

// While a ForkGuard lives, fork() of this process waits: hold it only for system calls that do not
// wait.
class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
};

// From now on a child closes its copies of the connections to `address` ("unix:///run/x.sock").
// Does nothing for addresses other than unix sockets. Thread-safe.
void CloseInChildren(const std::string& address);

}  // namespace prefixd::client
