#include "fork_guard.h"

#include <pthread.h>

#include <mutex>
#include <set>

#include "wire/socket_buffers.h"

namespace prefixd::client {
namespace {

// Never destroyed: a thread may fork while the process ends.
struct State {
  std::mutex mutex;
  std::set<std::string> addresses;  // guarded by the mutex
};

// The thread that forks holds the mutex across the fork and releases it on both sides.
void Prepare();
void InParent();
void InChild();

State& TheState() {
  static State* const state = [] {
    auto* const made = new State;
    // Without handlers (out of memory) children keep what they inherit.
    pthread_atfork(Prepare, InParent, InChild);
    return made;
  }();
  return *state;
}

void Prepare() { TheState().mutex.lock(); }
void InParent() { TheState().mutex.unlock(); }
void InChild() {
  for (const std::string& address : TheState().addresses) wire::CloseConnections(address);
  TheState().mutex.unlock();
}

}  // namespace

ForkGuard::ForkGuard() { TheState().mutex.lock(); }
ForkGuard::~ForkGuard() { TheState().mutex.unlock(); }

void CloseInChildren(const std::string& address) {
  if (wire::UnixPath(address).empty()) return;
  const ForkGuard guard;
  TheState().addresses.insert(address);
}

}  // namespace prefixd::client
