// The send buffer of a unix socket that carries pages.
#pragma once
#include <sys/socket.h>

namespace prefixd::wire {

// Lets the socket take about 400 KiB before its peer has read them, twice what the kernel gives by
// default, so that the two ends of a stream of pages wait for each other half as often. A socket
// that has more is left as it is. A Linux that is not tuned gives no more (net.core.wmem_max).
inline void EnlargeSendBuffer(int fd) {
  constexpr int kBytes = 212'992;  // the kernel adds as much for its own bookkeeping
  int before = 0;
  socklen_t size = sizeof(before);
  if (::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &before, &size) == 0 && before < 2 * kBytes) {
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kBytes, sizeof(kBytes));
  }
}

}  // namespace prefixd::wire
