#include "staging_memory.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

#include "os/memory.h"

namespace prefixd::client {

absl::StatusOr<std::shared_ptr<StagingMemory>> StagingMemory::Map(base::Descriptor fd,
                                                                  uint64_t bytes) {
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("staging: ", std::strerror(errno)));
  }
  if (bytes == 0 || static_cast<uint64_t>(info.st_size) < bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("staging: the memory has ", info.st_size, " bytes, ", bytes, " were granted"));
  }
  // If the daemon could shrink the memory, quantizing into it could end in a SIGBUS.
  if (!os::KeepsItsSize(fd.get())) {
    return absl::FailedPreconditionError("staging: the memory is not sealed against shrinking");
  }
  std::shared_ptr<StagingMemory> staging(new StagingMemory(bytes));
  const char* const failed =
      staging->memory_.Map(fd.Release(), bytes, os::HeldMapping::Access::kReadAndWrite);
  if (failed == nullptr) return staging;
  return absl::ResourceExhaustedError(
      absl::StrCat("staging: ", failed, ": ", std::strerror(errno)));
}

StagingMemory::StagingMemory(uint64_t bytes) : bytes_(bytes) { free_.emplace(0, bytes); }

PageMemory StagingMemory::Allocate(size_t bytes) {
  const uint64_t wanted = base::AlignUp(bytes, quant::kUnitAlignment);
  uint64_t offset = 0;
  {
    base::MutexLock lock(mutex_);
    auto place = free_.begin();
    while (place != free_.end() && place->second < wanted) ++place;
    if (place == free_.end()) return {};
    const auto [begin, room] = *place;
    offset = begin;
    free_.erase(place);
    if (room > wanted) free_.emplace(begin + wanted, room - wanted);
    used_bytes_ += wanted;
  }
  PageMemory page;
  page.bytes = {memory_.data() + offset, [self = shared_from_this(), offset, wanted](std::byte*) {
                  self->Free(offset, wanted);
                }};
  page.staging = this;
  return page;
}

void StagingMemory::Free(uint64_t offset, uint64_t bytes) {
  base::MutexLock lock(mutex_);
  used_bytes_ -= bytes;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(offset, bytes);
}

uint64_t StagingMemory::used_bytes() const {
  base::MutexLock lock(mutex_);
  return used_bytes_;
}

PageMemory AllocatePage(StagingMemory* staging, size_t bytes) {
  PageMemory page = staging != nullptr ? staging->Allocate(bytes) : PageMemory();
  return page ? page : AllocatePage(bytes);
}

}  // namespace prefixd::client
