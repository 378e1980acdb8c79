// PunchHole is no call of POSIX, but each system has one of the same meaning.
#include "os/memory.h"

#include <fcntl.h>

#include <cerrno>

namespace prefixd::os {

std::string FolderForSharedMemory() { return "/dev/shm"; }

bool AllocateAnywhere(int fd, uint64_t offset, uint64_t bytes) {
  errno = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return errno == 0;
}

bool BacksHoles() { return true; }

// Calls fallocate again each time a signal interrupts it.
bool PunchHole(int fd, uint64_t offset, uint64_t bytes) {
  while (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

}  // namespace prefixd::os
