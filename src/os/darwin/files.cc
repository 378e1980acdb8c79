#include "os/files.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/param.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace prefixd::os {
namespace {

// A filesystem of a disk may hold arenas here: there is no folder in memory that every user has.
// A filesystem of the network may not.
MountFacts Facts(const struct statfs& mount) {
  const auto unit = static_cast<uint64_t>(mount.f_bsize);
  const bool in_memory = std::string_view(mount.f_fstypename) == "tmpfs";
  return {.bytes = mount.f_blocks * unit,
          .free_bytes = mount.f_bavail * unit,
          .in_memory = in_memory,
          .may_hold_memory = in_memory || (mount.f_flags & MNT_LOCAL) != 0};
}

}  // namespace

// Asks for transfers past the page cache, which the kernel makes where they are aligned.
int OpenUncached(const std::string& path, int flags, unsigned mode) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0 || fcntl(fd, F_NOCACHE, 1) != -1) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

bool OpensUncached() { return true; }

// fsync() leaves bytes in the disk's own memory. Filesystems that are no disk's know only fsync().
bool Sync(int fd) {
  if (fcntl(fd, F_FULLFSYNC) != -1) return true;
  if (errno != ENOTSUP && errno != ENOTTY && errno != EINVAL) return false;
  return fsync(fd) == 0;
}

bool SyncData(int fd) { return Sync(fd); }

std::optional<MountFacts> MountOf(const std::string& path) {
  struct statfs mount = {};
  if (statfs(path.c_str(), &mount) != 0) return std::nullopt;
  return Facts(mount);
}

std::optional<MountFacts> MountOf(int fd) {
  struct statfs mount = {};
  if (fstatfs(fd, &mount) != 0) return std::nullopt;
  return Facts(mount);
}

timespec WrittenAt(const struct stat& status) { return status.st_mtimespec; }
timespec ChangedAt(const struct stat& status) { return status.st_ctimespec; }

std::optional<std::vector<int>> OpenDescriptors() {
  std::vector<int> open;
  std::error_code error;
  std::filesystem::directory_iterator entry("/dev/fd", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    open.push_back(std::atoi(entry->path().filename().c_str()));
  }
  if (error) return std::nullopt;
  return open;
}

}  // namespace prefixd::os
