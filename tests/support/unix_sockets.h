// The unix sockets of this process, as the kernel tells them.
#pragma once
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace prefixd {

enum class SocketEnd { kConnected, kAccepted };  // to or at a path

// The largest send buffer of this process's sockets of one end of `path`; 0: there is none.
inline int LargestSendBuffer(const std::string& path, SocketEnd end) {
  int largest = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_un name{};
    socklen_t size = sizeof(name);
    auto* address = reinterpret_cast<sockaddr*>(&name);
    const int told = end == SocketEnd::kConnected ? getpeername(fd, address, &size)
                                                  : getsockname(fd, address, &size);
    if (told != 0 || name.sun_family != AF_UNIX || path != name.sun_path) continue;
    int bytes = 0;
    size = sizeof(bytes);
    if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size) == 0)
      largest = std::max(largest, bytes);
  }
  return largest;
}

}  // namespace prefixd
