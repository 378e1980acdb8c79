#include "arena_mapping.h"

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
  if (!mapping->held_lock_.Take(lock.Release())) return Failed("keeping the lock");
  const char* const failed =
      mapping->file_.Map(arena.Release(), shape.file_bytes, os::HeldMapping::Access::kRead);
  if (failed != nullptr) return Failed(failed);
  mapping->file_.MakeLarge();
  PREFIXD_RETURN_IF_ERROR(
      Check(*reinterpret_cast<const block::ArenaHeader*>(mapping->file_.data()), shape));
  const std::optional<ArenaView> view = mapping->View();
  mapping->device_pins_ =
      std::make_unique<DevicePins>(view.has_value() ? view->bytes / view->slab_bytes : 0);
  return mapping;
}

std::optional<ArenaView> ArenaMapping::View() const {
  const auto& header = *reinterpret_cast<const block::ArenaHeader*>(file_.data());
  const uint64_t slabs = header.slabs, table = header.slabs_offset;
  if (header.slab_bytes == 0 || slabs > data_bytes() / header.slab_bytes || table > data_offset_ ||
      slabs > (data_offset_ - table) / sizeof(block::SlabRecord)) {
    return std::nullopt;
  }
  const auto* const records = reinterpret_cast<const block::SlabRecord*>(file_.data() + table);
  return ArenaView{.base = data(),
                   .bytes = slabs * header.slab_bytes,
                   .slab_bytes = header.slab_bytes,
                   .service = &records->service,
                   .service_stride = sizeof(block::SlabRecord) / sizeof(uint64_t),
                   .tell = &DevicePins::TellTo,
                   .teller = device_pins_.get()};
}

bool ArenaMapping::AreFiles(int arena, int lock) const {
  return IdOf(arena) == arena_ && IdOf(lock) == lock_;
}

}  // namespace prefixd::client
