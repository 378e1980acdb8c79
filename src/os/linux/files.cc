#include "os/files.h"

#include <fcntl.h>
#include <unistd.h>

namespace prefixd::os {

int OpenAgain(int fd, int /*folder*/, const std::string& /*path*/, int flags) {
  return open(("/proc/self/fd/" + std::to_string(fd)).c_str(), flags | O_CLOEXEC);
}

int OpenUncached(const std::string& path, int flags, unsigned mode) {
  return open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, mode);
}

bool OpensUncached() { return true; }

void DropCache(int fd) { posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); }

bool Sync(int fd) { return fsync(fd) == 0; }
bool SyncData(int fd) { return fdatasync(fd) == 0; }

}  // namespace prefixd::os
