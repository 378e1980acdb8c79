#include "os/holds.h"

#include <fcntl.h>

namespace prefixd::os {
namespace {

struct flock WholeFile(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

bool Hold(int fd) {
  struct flock lock = WholeFile(F_RDLCK);
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

bool IsHeld(int fd) {
  struct flock lock = WholeFile(F_WRLCK);
  return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

const char* HoldKind() { return ""; }

}  // namespace prefixd::os
