#include "arena_mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/checksum.h"
#include "base/status.h"
#include "block/arena_file.h"

namespace prefixd::client {
namespace {

constexpr size_t kLockBytes = 4096;

absl::Status Failed(const char* what) {
  return absl::FailedPreconditionError(absl::StrCat("arena: ", what, ": ", std::strerror(errno)));
}

absl::Status Check(const block::ArenaHeader& header, const ArenaShape& shape) {
  if (header.magic != block::kArenaMagic || header.version != block::kArenaVersion) {
    return absl::FailedPreconditionError(absl::StrCat("arena: the file is of version ",
                                                      header.version, ", this library knows ",
                                                      block::kArenaVersion));
  }
  const std::span<const std::byte> checked{reinterpret_cast<const std::byte*>(&header),
                                           offsetof(block::ArenaHeader, check)};
  if (header.file_bytes != shape.file_bytes || header.data_offset != shape.data_offset ||
      base::Xxh3(checked) != header.check) {
    return absl::FailedPreconditionError(absl::StrCat(
        "arena: the header says ", header.file_bytes, " bytes, data at ", header.data_offset,
        "; the daemon ", shape.file_bytes, " and ", shape.data_offset));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<ArenaMapping::FileId> ArenaMapping::IdOf(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return std::nullopt;
  return FileId{.device = info.st_dev, .inode = info.st_ino};
}

absl::StatusOr<std::shared_ptr<const ArenaMapping>> ArenaMapping::Map(base::Descriptor arena,
                                                                      base::Descriptor lock,
                                                                      const ArenaShape& shape) {
  struct stat info {};
  if (fstat(arena.get(), &info) != 0) return Failed("fstat");
  if (shape.file_bytes < sizeof(block::ArenaHeader) || shape.data_offset > shape.file_bytes ||
      static_cast<uint64_t>(info.st_size) < shape.file_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "arena: the file has ", info.st_size, " bytes, the daemon said ", shape.file_bytes));
  }
  const std::optional<FileId> arena_id = IdOf(arena.get()), lock_id = IdOf(lock.get());
  if (!arena_id.has_value() || !lock_id.has_value()) return Failed("fstat");
  std::shared_ptr<ArenaMapping> mapping(new ArenaMapping(shape, *arena_id, *lock_id));
  // Never accessed: the mapping only keeps the open file description that has the lock.
  void* const page = mmap(nullptr, kLockBytes, PROT_NONE, MAP_SHARED, lock.get(), 0);
  if (page == MAP_FAILED) return Failed("mmap of the lock");
  mapping->lock_page_ = page;
  void* const base =
      mmap(nullptr, shape.file_bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, arena.get(), 0);
  if (base == MAP_FAILED) return Failed("mmap");
  mapping->base_ = static_cast<const std::byte*>(base);
  if (madvise(page, kLockBytes, MADV_DONTFORK) != 0 ||
      madvise(base, shape.file_bytes, MADV_DONTFORK) != 0) {
    return Failed("madvise");
  }
  // Keeps the cache out of a worker's core dumps; takes huge pages where the tmpfs has them.
  madvise(base, shape.file_bytes, MADV_DONTDUMP);
  madvise(base, shape.file_bytes, MADV_HUGEPAGE);
  PREFIXD_RETURN_IF_ERROR(Check(*static_cast<const block::ArenaHeader*>(base), shape));
  return mapping;
}

ArenaMapping::~ArenaMapping() {
  if (owner_ != getpid()) return;  // in a child something else may be mapped there
  if (base_ != nullptr) munmap(const_cast<std::byte*>(base_), file_bytes_);
  if (lock_page_ != nullptr) munmap(lock_page_, kLockBytes);
}

bool ArenaMapping::AreFiles(int arena, int lock) const {
  return IdOf(arena) == arena_ && IdOf(lock) == lock_;
}

}  // namespace prefixd::client
