#include "os/holds.h"

#include <sys/file.h>

#include <cerrno>

namespace prefixd::os {

// Waits while somebody looks whether the file is held.
bool Hold(int fd) {
  while (flock(fd, LOCK_SH) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

bool IsHeld(int fd) {
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EINTR) return true;
  }
  flock(fd, LOCK_UN);
  return false;
}

const char* HoldKind() { return ".flock"; }

}  // namespace prefixd::os
