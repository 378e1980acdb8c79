#include "wire/socket_buffers.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace prefixd::wire {
namespace {

using NameOfEnd = int (*)(int, sockaddr*, socklen_t*);

// Returns whether one end of the socket has this path. False for files of other kinds.
bool HasPath(int fd, NameOfEnd name_of_end, std::string_view path) {
  sockaddr_un name{};
  socklen_t bytes = sizeof(name);
  if (name_of_end(fd, reinterpret_cast<sockaddr*>(&name), &bytes) != 0) return false;
  constexpr size_t kBefore = offsetof(sockaddr_un, sun_path);
  if (name.sun_family != AF_UNIX || bytes <= kBefore || bytes > sizeof(name)) return false;
  const std::string_view seen(name.sun_path, bytes - kBefore);
  return seen.substr(0, seen.find('\0')) == path;  // the kernel counts the zero behind it
}

int SendBuffer(int fd) {
  int bytes = 0;
  socklen_t size = sizeof(bytes);
  return ::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size) == 0 ? bytes : 0;
}

bool Enlarge(int fd) {
  const int before = SendBuffer(fd);
  if (before >= 2 * kSocketSendBytes) return false;
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketSendBytes, sizeof(kSocketSendBytes));
  return SendBuffer(fd) > before;
}

}  // namespace

std::string_view UnixPath(std::string_view address) {
  constexpr std::string_view kScheme = "unix:";
  if (!address.starts_with(kScheme)) return {};
  address.remove_prefix(kScheme.size());
  return address.starts_with("//") ? address.substr(2) : address;
}

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

}  // namespace

int EnlargeSendBuffers(std::string_view address) {
  const std::string_view path = UnixPath(address);
  if (path.empty()) return 0;
  int enlarged = 0;
  for (const int fd : Descriptors()) {
    const bool here = HasPath(fd, ::getpeername, path) || HasPath(fd, ::getsockname, path);
    if (here && Enlarge(fd)) ++enlarged;
  }
  return enlarged;
}

int CloseConnections(std::string_view address) {
  const std::string_view path = UnixPath(address);
  if (path.empty()) return 0;
  int closed = 0;
  for (const int fd : Descriptors()) {
    if (HasPath(fd, ::getpeername, path) && ::close(fd) == 0) ++closed;
  }
  return closed;
}

}  // namespace prefixd::wire
