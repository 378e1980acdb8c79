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

absl::StatusOr<std::shared_ptr<const ArenaMapping>> ArenaMapping::Map(UniqueFd fd,
                                                                      const ArenaShape& shape) {
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return Failed("fstat");
  if (shape.file_bytes < sizeof(block::ArenaHeader) || shape.data_offset > shape.file_bytes ||
      static_cast<uint64_t>(info.st_size) < shape.file_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "arena: the file has ", info.st_size, " bytes, the daemon said ", shape.file_bytes));
  }
  void* base = mmap(nullptr, shape.file_bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED) return Failed("mmap");
  // A core dump of a worker is not a copy of the cache; huge pages where the tmpfs has them.
  madvise(base, shape.file_bytes, MADV_DONTDUMP);
  madvise(base, shape.file_bytes, MADV_HUGEPAGE);
  std::shared_ptr<const ArenaMapping> mapping(
      new ArenaMapping(std::move(fd), static_cast<const std::byte*>(base), shape));
  PREFIXD_RETURN_IF_ERROR(Check(*static_cast<const block::ArenaHeader*>(base), shape));
  return mapping;
}

ArenaMapping::~ArenaMapping() { munmap(const_cast<std::byte*>(base_), file_bytes_); }

bool ArenaMapping::IsFile(int fd) const {
  struct stat mine {
  }, other{};
  return fstat(fd_.get(), &mine) == 0 && fstat(fd, &other) == 0 && mine.st_dev == other.st_dev &&
         mine.st_ino == other.st_ino;
}

}  // namespace prefixd::client
