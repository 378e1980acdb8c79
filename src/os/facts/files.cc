#include "os/files.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace prefixd::os {
namespace {

MountFacts Facts(const struct statfs& mount) {
  const auto unit = static_cast<uint64_t>(mount.f_bsize);
  const bool in_memory = mount.f_type == TMPFS_MAGIC;
  return {.bytes = mount.f_blocks * unit,
          .free_bytes = mount.f_bavail * unit,
          .in_memory = in_memory,
          .may_hold_memory = in_memory};
}

}  // namespace

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

timespec WrittenAt(const struct stat& status) { return status.st_mtim; }
timespec ChangedAt(const struct stat& status) { return status.st_ctim; }

std::optional<std::vector<int>> OpenDescriptors() {
  std::vector<int> open;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  // Not a range for, whose step throws: here errors end the walk.
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    open.push_back(std::atoi(entry->path().filename().c_str()));
  }
  if (error) return std::nullopt;
  return open;
}

}  // namespace prefixd::os
