#include "fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

#include "address.h"
#include "os/held_file.h"
#include "unix_connections.h"

namespace prefixd::client {
namespace {

// Never destroyed: a thread may fork while the process ends.
struct State {
  std::mutex mutex;
  std::set<std::string> paths;  // of sockets; guarded by the mutex
};

// The thread that forks holds the mutex across the fork and releases it on both sides.
void Prepare();
void InParent();
void InChild();

State& TheState() {
  static State* const state = [] {
    auto* const made = new State;
    os::PrepareForForks();
    // Without handlers (out of memory) children keep what they inherit.
    pthread_atfork(Prepare, InParent, InChild);
    return made;
  }();
  return *state;
}

void Prepare() { TheState().mutex.lock(); }
void InParent() { TheState().mutex.unlock(); }
void InChild() {
  for (const std::string& path : TheState().paths) {
    for (const int fd : ConnectionsTo(path)) ::close(fd);
  }
  TheState().mutex.unlock();
}

}  // namespace

ForkGuard::ForkGuard() { TheState().mutex.lock(); }
ForkGuard::~ForkGuard() { TheState().mutex.unlock(); }

void CloseInChildren(const std::string& address) {
  const std::string path = UnixPath(address);
  if (path.empty()) return;
  const ForkGuard guard;
  TheState().paths.insert(path);
}

}  // namespace prefixd::client
