// Staging memory: this worker writes it and the daemon reads it at Commit. Pages are allocated in
// it, so that quantizing puts them where the daemon takes them from.
//
// Thread-safe. Stays mapped as long as a page in it lives, also beyond its session.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/statusor.h"

#include "base/descriptor.h"
#include "base/mutex.h"
#include "os/held_file.h"
#include "page_memory.h"

namespace prefixd::client {

class StagingMemory : public std::enable_shared_from_this<StagingMemory> {
 public:
  // Maps `bytes` of the descriptor that the daemon handed over. FailedPrecondition if it is shorter
  // or could be made so.
  static absl::StatusOr<std::shared_ptr<StagingMemory>> Map(base::Descriptor fd, uint64_t bytes);
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  // Allocates a page with undefined contents. None if there is no room.
  PageMemory Allocate(size_t bytes) PREFIXD_EXCLUDES(mutex_);
  // Requires: page.staging == this.
  uint64_t OffsetOf(const PageMemory& page) const {
    return static_cast<uint64_t>(page.get() - memory_.data());
  }
  uint64_t bytes() const { return bytes_; }
  uint64_t used_bytes() const PREFIXD_EXCLUDES(mutex_);

 private:
  explicit StagingMemory(uint64_t bytes);
  void Free(uint64_t offset, uint64_t bytes) PREFIXD_EXCLUDES(mutex_);

  os::HeldMapping memory_;  // set before this is shared
  const uint64_t bytes_;
  mutable base::Mutex mutex_;                                     // guards what follows
  std::map<uint64_t, uint64_t> free_ PREFIXD_GUARDED_BY(mutex_);  // offset -> bytes, never adjacent
  uint64_t used_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

// Allocates a page in `staging`, which may be null, while that has room, else on the heap. Contents
// are undefined; none if memory is out.
PageMemory AllocatePage(StagingMemory* staging, size_t bytes);

}  // namespace prefixd::client
