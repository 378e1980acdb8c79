#include "os/sockets.h"

#include <poll.h>
#include <sys/socket.h>

namespace prefixd::os {

int NewSocket(int domain, int type, int protocol, Waits waits) {
  const int flags = waits == Waits::kYes ? SOCK_CLOEXEC : SOCK_CLOEXEC | SOCK_NONBLOCK;
  return socket(domain, type | flags, protocol);
}

int AcceptFrom(int listener) {
  return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

uint64_t SocketId(int fd) {
  uint64_t cookie = 0;
  socklen_t bytes = sizeof(cookie);
  return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &bytes) == 0 ? cookie : 0;
}

bool HasHungUp(int socket) {
  pollfd look{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return poll(&look, 1, 0) > 0 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace prefixd::os
