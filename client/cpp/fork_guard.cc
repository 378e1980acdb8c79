#include "fork_guard.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>
#include <vector>

#include "address.h"

namespace prefixd::client {
namespace {

// Returns the descriptors of this process; none without /proc.
std::vector<int> Descriptors() {
  std::vector<int> descriptors;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  // Not a range for, whose step throws: here errors end the walk.
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    descriptors.push_back(std::atoi(entry->path().filename().c_str()));
  }
  return descriptors;
}

bool IsConnectedTo(int fd, const std::string& path) {
  sockaddr_un name{};
  socklen_t bytes = sizeof(name);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&name), &bytes) != 0) return false;
  constexpr size_t kBefore = offsetof(sockaddr_un, sun_path);
  if (name.sun_family != AF_UNIX || bytes <= kBefore || bytes > sizeof(name)) return false;
  const std::string seen(name.sun_path, bytes - kBefore);
  return seen.substr(0, seen.find('\0')) == path;  // the kernel counts the zero behind it
}

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
    // Without handlers (out of memory) children keep what they inherit.
    pthread_atfork(Prepare, InParent, InChild);
    return made;
  }();
  return *state;
}

void Prepare() { TheState().mutex.lock(); }
void InParent() { TheState().mutex.unlock(); }
void InChild() {
  for (const int fd : Descriptors()) {
    for (const std::string& path : TheState().paths) {
      if (IsConnectedTo(fd, path)) ::close(fd);
    }
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
