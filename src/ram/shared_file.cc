#include "ram/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/size.h"
#include "base/status.h"
#include "ram/make_file.h"
#include "ram/slot_locks.h"

namespace prefixd::ram {

SharedFile::SharedFile(OwnedFile file, std::byte* map, uint64_t bytes)
    : fd_(std::move(file.fd)),
      locks_(std::move(file.locks)),
      map_(map),
      bytes_(bytes),
      replaced_why_(std::move(file.replaced_why)) {}

SharedFile::~SharedFile() {
  base::ForgetHolder(fd_.get(), block::kArenaOwnerOffset);
  munmap(map_, bytes_);
}

uint64_t SharedFile::FixedBytes(const block::ArenaHeader& header) {
  return header.spaces_offset + block::kExtentUnit;
}

uint64_t SharedFile::LeastCapacity(uint64_t slab_bytes, uint64_t slabs) {
  block::ArenaHeader header;
  LayOut(slab_bytes, slabs, &header);
  return FixedBytes(header) + slab_bytes + header.slab_record_bytes;
}

absl::StatusOr<std::unique_ptr<SharedFile>> SharedFile::Open(const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(OwnedFile file, FindOrMakeFile(options));
  struct stat status = {};
  if (fstat(file.fd.get(), &status) != 0) {
    return absl::InternalError(absl::StrCat("arena: fstat: ", strerror(errno)));
  }
  const auto bytes = static_cast<uint64_t>(status.st_size);
  void* const map =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.fd.get(), 0);
  if (map == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("arena: the kernel refuses a mapping of ",
                                                     base::FormatBytes(bytes), ": ",
                                                     strerror(errno)));
  }
  std::unique_ptr<SharedFile> shared(
      new SharedFile(std::move(file), static_cast<std::byte*>(map), bytes));
  const block::ArenaHeader& header = *shared->header();
  madvise(shared->map_, header.data_offset, MADV_NOHUGEPAGE);          // BackTables needs it
  madvise(shared->data(), bytes - header.data_offset, MADV_HUGEPAGE);  // a hint
  if (shared->BackTables(0, FixedBytes(header))) return shared;
  return absl::ResourceExhaustedError(
      absl::StrCat("arena: the tmpfs of ", options.path, " has no room for its tables"));
}

bool SharedFile::BackData(uint64_t offset, uint64_t bytes) const {
  return base::AllocateRange(fd(), 0, offset, bytes);
}

bool SharedFile::BackTables(uint64_t offset, uint64_t bytes) const {
  return BackSmallPages(fd(), map_, offset, bytes);
}

bool SharedFile::HasRoom(uint64_t bytes) const {
  struct statfs mount = {};
  if (fstatfs(fd(), &mount) != 0 || mount.f_blocks == 0) return true;  // no limit
  return mount.f_bavail * static_cast<uint64_t>(mount.f_bsize) >= bytes;
}

std::optional<uint64_t> SharedFile::RoomBytes() const {
  struct statfs mount = {};
  struct stat status = {};
  if (fstatfs(fd(), &mount) != 0 || mount.f_blocks == 0 || fstat(fd(), &status) != 0) {
    return std::nullopt;
  }
  return mount.f_bavail * static_cast<uint64_t>(mount.f_bsize) +
         static_cast<uint64_t>(status.st_blocks) * 512;
}

void SharedFile::Punch(uint64_t offset, uint64_t bytes) const {
  if (bytes == 0) return;
  base::AllocateRange(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}

void SharedFile::Populate(uint64_t offset, uint64_t bytes) const {
  madvise(map_ + offset, bytes, kPopulateWrite);
}

absl::StatusOr<base::Descriptor> SharedFile::OpenReadOnly() const {
  const std::string self = absl::StrCat("/proc/self/fd/", fd());
  base::Descriptor opened(open(self.c_str(), O_RDONLY | O_CLOEXEC));
  if (opened) return opened;
  return absl::InternalError(
      absl::StrCat("arena: cannot open its file read-only: ", strerror(errno)));
}

}  // namespace prefixd::ram
