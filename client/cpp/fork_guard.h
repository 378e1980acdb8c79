// What a child of fork() must not have of its parent's: a child that goes on without exec would
// keep the session, slot and leases of a worker that died.
//
// Mappings are marked MADV_DONTFORK where they are made, and their descriptors closed. Between the
// two no fork happens, and connections to the daemon, which gRPC keeps open, are closed in the
// child.
//
// A child made by clone() or vfork() without fork()'s handlers is not seen; exec closes everything.
#pragma once
#include <string>

namespace prefixd::client {

// While one lives, fork() of this process waits: hold it for system calls that do not wait.
class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
};

// From now on a child closes its copies of connections to `address` ("unix:///run/x.sock"; nothing
// for others). Thread-safe.
void CloseInChildren(const std::string& address);

}  // namespace prefixd::client
