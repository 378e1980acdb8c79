#include "os/memory.h"

#include <fcntl.h>

#include <cerrno>

namespace prefixd::os {

bool Allocate(int fd, uint64_t offset, uint64_t bytes) {
  int error = EINTR;
  while (error == EINTR) {
    error = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }
  errno = error;
  return error == 0;
}

}  // namespace prefixd::os
