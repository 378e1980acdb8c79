#include "os/sockets.h"

#include <sys/stat.h>

namespace prefixd::os {

uint64_t SocketId(int fd) {
  struct stat status = {};
  if (fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode)) return 0;
  return static_cast<uint64_t>(status.st_ino);
}

}  // namespace prefixd::os
