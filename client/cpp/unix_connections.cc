#include "unix_connections.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>

#include "address.h"
#include "os/files.h"
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
  for (const int fd : os::OpenDescriptors().value_or(std::vector<int>())) {
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
