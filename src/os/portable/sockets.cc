#include "os/sockets.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace prefixd::os {
namespace {

// Sets what socket() and accept() have no flags for. Closes the descriptor if it cannot.
int WithFlags(int fd, Waits waits) {
  if (fd < 0) return -1;
  const int flags = fcntl(fd, F_GETFL);
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && flags >= 0 &&
      (waits == Waits::kYes || fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0)) {
    return fd;
  }
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

int NewSocket(int domain, int type, int protocol, Waits waits) {
  return WithFlags(socket(domain, type, protocol), waits);
}

int AcceptFrom(int listener) { return WithFlags(accept(listener, nullptr, nullptr), Waits::kNo); }

bool HasHungUp(int socket) {
  pollfd look{.fd = socket, .events = POLLIN, .revents = 0};
  if (poll(&look, 1, 0) <= 0) return false;
  if ((look.revents & (POLLHUP | POLLERR)) != 0) return true;
  char byte = 0;
  return recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

}  // namespace prefixd::os
