// The daemon's arena as this worker sees it: read-only, whole. The mapping is also what protects
// leased pages: the kernel holds the session's lock for as long as it, or its descriptor, is there.
//
// Thread-safe. Whoever reads pages holds a reference; so it outlives session and daemon.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

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
  static absl::StatusOr<std::shared_ptr<const ArenaMapping>> Map(UniqueFd fd,
                                                                 const ArenaShape& shape);
  ~ArenaMapping();
  ArenaMapping(const ArenaMapping&) = delete;
  ArenaMapping& operator=(const ArenaMapping&) = delete;

  // Places in the arena count from here.
  const std::byte* data() const { return base_ + data_offset_; }
  uint64_t data_bytes() const { return file_bytes_ - data_offset_; }
  // The same file.
  bool IsFile(int fd) const;

 private:
  ArenaMapping(UniqueFd fd, const std::byte* base, const ArenaShape& shape)
      : fd_(std::move(fd)),
        base_(base),
        file_bytes_(shape.file_bytes),
        data_offset_(shape.data_offset) {}

  const UniqueFd fd_;
  const std::byte* const base_;
  const uint64_t file_bytes_;
  const uint64_t data_offset_;
};

}  // namespace prefixd::client
