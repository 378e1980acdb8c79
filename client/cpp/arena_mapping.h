// The daemon's arena as this worker sees it: read-only, whole. Beside it a mapping of the session's
// lock file, which nobody touches: it protects leased pages, for the kernel holds the session's
// lock for as long as it is there.
//
// Both are this process's alone. A child of fork() has neither (MADV_DONTFORK) nor their
// descriptors, which are closed once they are mapped: it cannot keep what a dead worker held.
//
// Thread-safe. Whoever reads pages holds a reference; so it outlives session and daemon.
#pragma once
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"

#include "unique_fd.h"

namespace prefixd::client {

// What the daemon said of its arena.
struct ArenaShape {
  uint64_t file_bytes = 0;
  uint64_t data_offset = 0;
};

class ArenaMapping {
 public:
  // FailedPrecondition when the file is not the arena that `shape` says, or of another version.
  static absl::StatusOr<std::shared_ptr<const ArenaMapping>> Map(UniqueFd arena, UniqueFd lock,
                                                                 const ArenaShape& shape);
  ~ArenaMapping();
  ArenaMapping(const ArenaMapping&) = delete;
  ArenaMapping& operator=(const ArenaMapping&) = delete;

  // Places in the arena count from here.
  const std::byte* data() const { return base_ + data_offset_; }
  uint64_t data_bytes() const { return file_bytes_ - data_offset_; }
  // The same arena, under the same lock.
  bool AreFiles(int arena, int lock) const;

 private:
  // What tells a file from all others that are open somewhere.
  struct FileId {
    dev_t device = 0;
    ino_t inode = 0;
    bool operator==(const FileId&) const = default;
  };
  static std::optional<FileId> IdOf(int fd);
  ArenaMapping(const ArenaShape& shape, FileId arena, FileId lock)
      : arena_(arena),
        lock_(lock),
        file_bytes_(shape.file_bytes),
        data_offset_(shape.data_offset) {}

  const FileId arena_, lock_;
  const pid_t owner_ = getpid();
  const std::byte* base_ = nullptr;  // of the arena; set before it is shared
  void* lock_page_ = nullptr;
  const uint64_t file_bytes_;
  const uint64_t data_offset_;
};

}  // namespace prefixd::client
