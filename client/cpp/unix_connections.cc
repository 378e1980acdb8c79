#include "unix_connections.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "address.h"
#include "wire/send_buffer.h"

namespace prefixd::client {
namespace {

bool IsConnectedTo(int fd, const std::string& path) {
  sockaddr_un name{};
  socklen_t bytes = sizeof(name);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&name), &bytes) != 0) return false;
  constexpr size_t kBefore = offsetof(sockaddr_un, sun_path);
  if (name.sun_family != AF_UNIX || bytes <= kBefore || bytes > sizeof(name)) return false;
  const std::string seen(name.sun_path, bytes - kBefore);
  return seen.substr(0, seen.find('\0')) == path;  // the kernel counts the zero behind it
}

}  // namespace

std::vector<int> ConnectionsTo(const std::string& path) {
  std::vector<int> connections;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  // Not a range for, whose step throws: here errors end the walk.
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const int fd = std::atoi(entry->path().filename().c_str());
    if (IsConnectedTo(fd, path)) connections.push_back(fd);
  }
  return connections;
}

void EnlargeSendBuffers(const std::string& address) {
  const std::string path = UnixPath(address);
  if (path.empty()) return;
  for (const int fd : ConnectionsTo(path)) wire::EnlargeSendBuffer(fd);
}

}  // namespace prefixd::client
