#include "ram/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/size.h"
#include "base/status.h"
#include "os/files.h"
#include "os/memory.h"
#include "ram/make_file.h"
#include "ram/slot_locks.h"

namespace prefixd::ram {

SharedFile::SharedFile(const std::string& path, OwnedFile file, std::byte* map, uint64_t bytes)
    : path_(path),
      fd_(std::move(file.fd)),
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
      new SharedFile(options.path, std::move(file), static_cast<std::byte*>(map), bytes));
  const block::ArenaHeader& header = *shared->header();
  os::AvoidHugePages(shared->map_, header.data_offset);  // BackTables needs it
  os::PreferHugePages(shared->data(), bytes - header.data_offset);
  if (!options.nodes.empty() && !os::SpreadOverNodes(shared->map_, bytes, options.nodes)) {
    shared->not_spread_why_ = strerror(errno);
  }
  if (shared->BackTables(0, FixedBytes(header))) return shared;
  return absl::ResourceExhaustedError(
      absl::StrCat("arena: the tmpfs of ", options.path, " has no room for its tables"));
}

bool SharedFile::BackData(uint64_t offset, uint64_t bytes) const {
  return os::Allocate(fd(), offset, bytes);
}

bool SharedFile::BackTables(uint64_t offset, uint64_t bytes) const {
  return os::AllocateSmallPages(fd(), map_, offset, bytes);
}

bool SharedFile::HasRoom(uint64_t bytes) const {
  const std::optional<os::MountFacts> mount = os::MountOf(fd());
  return !mount.has_value() || mount->bytes == 0 || mount->free_bytes >= bytes;
}

std::optional<uint64_t> SharedFile::RoomBytes() const {
  const std::optional<os::MountFacts> mount = os::MountOf(fd());
  struct stat status = {};
  if (!mount.has_value() || mount->bytes == 0 || fstat(fd(), &status) != 0) return std::nullopt;
  return mount->free_bytes + static_cast<uint64_t>(status.st_blocks) * 512;
}

void SharedFile::Punch(uint64_t offset, uint64_t bytes) const {
  if (bytes != 0) os::PunchHole(fd(), offset, bytes);
}

void SharedFile::Populate(uint64_t offset, uint64_t bytes) const {
  os::Populate(map_ + offset, bytes);
}

absl::StatusOr<base::Descriptor> SharedFile::OpenReadOnly() const {
  base::Descriptor opened(os::OpenAgain(fd(), AT_FDCWD, path_, O_RDONLY));
  if (opened) return opened;
  return absl::InternalError(
      absl::StrCat("arena: cannot open its file read-only: ", strerror(errno)));
}

}  // namespace prefixd::ram
