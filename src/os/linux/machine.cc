#include "os/machine.h"

#include <sys/random.h>

#include <cerrno>

namespace prefixd::os {

bool RandomBytes(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno != EINTR) return false;
    if (got > 0) bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return true;
}

}  // namespace prefixd::os
