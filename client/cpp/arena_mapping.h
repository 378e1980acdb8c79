// The daemon's arena as this worker maps it: whole and read-only. Beside it, the session's lock
// file is kept: while it is, the kernel holds the session's lock, which protects leased pages.
//
// Both are this process's alone (os/held_file.h): a child of fork() has neither, so it cannot keep
// what a dead worker held.
//
// Thread-safe. Every reader of pages holds a reference, so a mapping outlives session and daemon.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"

#include "base/descriptor.h"
#include "device_pins.h"
#include "os/held_file.h"
#include "prefixd/client.h"

namespace prefixd::client {

// The arena's shape as the daemon told it.
struct ArenaShape {
  uint64_t file_bytes = 0;
  uint64_t data_offset = 0;
};

class ArenaMapping {
 public:
  // Takes both files. FailedPrecondition if the file is not the arena
  // that `shape` says, or is of another version.
  static absl::StatusOr<std::shared_ptr<const ArenaMapping>> Map(base::Descriptor arena,
                                                                 base::Descriptor lock,
                                                                 const ArenaShape& shape);
  ArenaMapping(const ArenaMapping&) = delete;
  ArenaMapping& operator=(const ArenaMapping&) = delete;

  // Offsets in the arena count from here.
  const std::byte* data() const { return file_.data() + data_offset_; }
  uint64_t data_bytes() const { return file_bytes_ - data_offset_; }
  // The whole file, which begins with a block::ArenaHeader. What was not announced must not be
  // read.
  std::span<const std::byte> file() const { return {file_.data(), file_bytes_}; }
  // What a device needs to pin it, without a reference. nullopt if the header was overwritten.
  std::optional<ArenaView> View() const;
  // What this process has pinned of it for devices.
  DevicePins& device_pins() const { return *device_pins_; }
  // Whether the descriptors are those of this arena and its lock.
  bool AreFiles(int arena, int lock) const;

 private:
  // Tells a file from all others that are open anywhere.
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
  // Set before the mapping is shared. The lock is given back last.
  os::HeldFile held_lock_;
  os::HeldMapping file_;
  const uint64_t file_bytes_;
  const uint64_t data_offset_;
  std::unique_ptr<DevicePins> device_pins_;
};

}  // namespace prefixd::client
