#include "os/machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace prefixd::os {

bool RandomBytes(std::span<std::byte> bytes) {
  const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  while (!bytes.empty()) {
    const ssize_t got = read(fd, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  close(fd);
  return bytes.empty();
}

}  // namespace prefixd::os
