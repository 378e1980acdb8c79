#include "os/machine.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

namespace prefixd::os {

bool RandomBytes(std::span<std::byte> bytes) {
  constexpr size_t kMost = 256;  // of one call
  while (!bytes.empty()) {
    const size_t piece = std::min(bytes.size(), kMost);
    if (getentropy(bytes.data(), piece) == 0) {
      bytes = bytes.subspan(piece);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace prefixd::os
