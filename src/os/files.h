// What is asked of files and filesystems beyond POSIX.
//
// Thread-safe. Calls that fail say why in errno; descriptors are close-on-exec and the caller's.
#pragma once
#include <sys/stat.h>
#include <time.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace prefixd::os {

// Opens a new description of the file that `fd` is. -1 on failure. `flags`: O_RDONLY or O_RDWR.
// linux: by the descriptor, whatever the file is called now. portable: by its name `path`, relative
// to the folder `folder` (or AT_FDCWD); fails with ESTALE if another file stands there.
int OpenAgain(int fd, int folder, const std::string& path, int flags);

// Opens a file past the page cache; `flags` and `mode` are those of open(). linux: O_DIRECT, fails
// with EINVAL where the filesystem has none. portable: an ordinary file, whose cache is the
// system's affair.
int OpenUncached(const std::string& path, int flags, unsigned mode);
// Whether OpenUncached goes past the page cache at all.
bool OpensUncached();
// Forgets what the page cache has of the file, where the system can.
void DropCache(int fd);

// Returns once what was written to the file or folder is on the disk.
bool Sync(int fd);
// The same for a file's data; its times may come later.
bool SyncData(int fd);

struct MountFacts {
  uint64_t bytes = 0;            // 0: without a limit
  uint64_t free_bytes = 0;       // for this user
  bool in_memory = false;        // a tmpfs: nothing in it survives a boot
  bool may_hold_memory = false;  // its files may be memory of processes: in_memory, but on Darwin
};
// Describes the filesystem of a file or folder that is there.
std::optional<MountFacts> MountOf(const std::string& path);
std::optional<MountFacts> MountOf(int fd);

timespec WrittenAt(const struct stat& status);  // the file's bytes
timespec ChangedAt(const struct stat& status);  // its owner, mode, names, or bytes

// Returns the descriptors that this process has open, the one that lists them perhaps among them.
// nullopt if the system does not tell.
std::optional<std::vector<int>> OpenDescriptors();

}  // namespace prefixd::os
