#include "os/files.h"

#include <fcntl.h>
#include <unistd.h>

namespace prefixd::os {

int OpenUncached(const std::string& path, int flags, unsigned mode) {
  return open(path.c_str(), flags | O_CLOEXEC, mode);
}

bool OpensUncached() { return false; }

bool Sync(int fd) { return fsync(fd) == 0; }
bool SyncData(int fd) { return fsync(fd) == 0; }

}  // namespace prefixd::os
