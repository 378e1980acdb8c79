#include "ram/make_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/file_lock.h"
#include "base/own_file.h"
#include "base/size.h"
#include "base/status.h"
#include "os/files.h"
#include "os/machine.h"
#include "os/memory.h"

namespace prefixd::ram {
namespace {

constexpr uint64_t kUnit = block::kExtentUnit;
// Address space of the space table, which takes memory as it fills. The cache forgets spaces before
// it is full.
uint64_t SpacesBytes(uint64_t data_bytes) {
  return base::AlignUp(std::clamp(data_bytes / 128, uint64_t{1} << 20, uint64_t{256} << 20), kUnit);
}
constexpr int kAttempts = 16;  // at a path that other processes are changing

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Returns whether `path` still names the descriptor's file.
bool StandsAt(const std::string& path, int fd) {
  struct stat named = {}, opened = {};
  return lstat(path.c_str(), &named) == 0 && fstat(fd, &opened) == 0 && SameFile(named, opened);
}

absl::Status Failed(const std::string& path, const char* what) {
  const std::string message = absl::StrCat("arena: ", path, ": ", what, ": ", strerror(errno));
  return errno == ENOSPC || errno == ENOMEM ? absl::ResourceExhaustedError(message)
                                            : absl::FailedPreconditionError(message);
}

absl::StatusOr<base::Hash128> BootId() {
  base::Hash128 id{};
  if (os::BootId(id)) return id;
  return absl::FailedPreconditionError("arena: the system does not tell the kernel's boot");
}

uint64_t HeaderCheck(const block::ArenaHeader& header) {
  return base::Xxh3(
      {reinterpret_cast<const std::byte*>(&header), offsetof(block::ArenaHeader, check)});
}

absl::StatusOr<os::MountFacts> CheckFolder(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const std::string name = parent.empty() ? "." : parent;
  const std::optional<os::MountFacts> folder = os::MountOf(name);
  if (!folder.has_value()) return Failed(name, "cannot be looked at");
  if (folder->may_hold_memory) return *folder;
  return absl::FailedPreconditionError(
      absl::StrCat("arena: ", name, " is not on a tmpfs: the file would be written to a disk"));
}

// ResourceExhausted if the tmpfs has no room for a quarter of the capacity, counting what `old`
// gives back or goes on using.
absl::Status CheckRoom(const SharedFile::Options& options, const os::MountFacts& folder, int old) {
  if (folder.bytes == 0) return absl::OkStatus();  // a tmpfs without limit
  struct stat status = {};
  uint64_t room = folder.free_bytes;
  if (old >= 0 && fstat(old, &status) == 0) room += static_cast<uint64_t>(status.st_blocks) * 512;
  if (room >= options.capacity_bytes / 4) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("arena: the tmpfs of ", options.path, " has room for ", base::FormatBytes(room),
                   ", a quarter of the capacity of ", base::FormatBytes(options.capacity_bytes),
                   " is the least"));
}

// Takes the file's own lock (flock), which tells an earlier prefixd, and one whose folder of locks
// was removed, that the file is owned. If the owner that is named has ended, a worker can hold this
// lock, and it does not count.
absl::Status Lock(const std::string& path, int fd, const base::LockWait& wait) {
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (base::HolderHasEnded(fd, block::kArenaOwnerOffset)) return absl::OkStatus();
  return base::LockFile(fd, "arena: " + path, block::kArenaOwnerOffset, wait);
}

// Locks the file and makes it unwritable for others. FailedPrecondition if it is not a plain file
// of ours, Unavailable if another process holds the lock. Requires: the owner's lock is ours.
absl::Status Own(const std::string& path, int fd, const base::LockWait& wait) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) return Failed(path, "cannot be looked at");
  if (!S_ISREG(status.st_mode) || status.st_nlink > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("arena: ", path, " is not a plain file with one name"));
  }
  PREFIXD_RETURN_IF_ERROR(base::CheckOwner(fd, "arena: " + path));
  const absl::Status locked = Lock(path, fd, wait);
  if (absl::IsFailedPrecondition(locked)) {
    return absl::UnavailableError(
        absl::StrCat(std::string(locked.message()), ": it belongs to another running process"));
  }
  PREFIXD_RETURN_IF_ERROR(locked);
  return fchmod(fd, 0640) == 0 ? absl::OkStatus() : Failed(path, "cannot set its mode");
}

// Opens and owns the file at `path`. Returns an empty descriptor if there is none.
absl::StatusOr<base::Descriptor> OwnExisting(const std::string& path, const base::LockWait& wait) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    base::Descriptor fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!fd && errno == ENOENT) return base::Descriptor();
    if (!fd) return Failed(path, "cannot be opened");
    PREFIXD_RETURN_IF_ERROR(Own(path, fd.get(), wait));
    if (StandsAt(path, fd.get())) return fd;  // else another process replaced it meanwhile
  }
  return absl::FailedPreconditionError(absl::StrCat("arena: ", path, " does not stand still"));
}

// Returns what is wrong with the slab table. Empty if every entry is possible and no more slabs are
// in service than the file has memory for.
std::string WhyBadSlabs(int fd, const block::ArenaHeader& header, uint64_t allocated_bytes) {
  std::vector<uint64_t> words(header.slabs * sizeof(block::SlabRecord) / sizeof(uint64_t));
  const size_t bytes = words.size() * sizeof(uint64_t);
  if (pread(fd, words.data(), bytes, static_cast<off_t>(header.slabs_offset)) !=
      static_cast<ssize_t>(bytes)) {
    return "its slab table cannot be read";
  }
  uint64_t in_service = 0;
  for (size_t i = 0; i < words.size(); i += 2) {
    const uint32_t extent_units = static_cast<uint32_t>(words[i]);
    if (!block::IsGuarded(words[i]) || !block::IsGuarded(words[i + 1]) ||
        extent_units > header.slab_bytes / kUnit) {
      return absl::StrCat("entry ", i / 2, " of its slab table is damaged");
    }
    in_service += block::InService(words[i + 1]) ? 1 : 0;
  }
  if (in_service * header.slab_bytes <= allocated_bytes) return "";
  return "its slabs have less memory than they should";
}

// Returns which slot in use has lost its lock file, so that nothing tells whether its worker reads.
// Empty if none has.
std::string WhyBadLocks(int fd, const block::ArenaHeader& header, const SlotLocks& locks) {
  constexpr size_t kWords = sizeof(block::SlotRecord) / sizeof(uint64_t);
  constexpr size_t kInode = offsetof(block::SlotRecord, lock_inode);
  static_assert(offsetof(block::SlotRecord, in_use) == 0 && kInode % 8 == 4);
  std::array<uint64_t, block::kArenaSlots * kWords> words{};
  if (pread(fd, words.data(), sizeof(words), static_cast<off_t>(header.slots_offset)) !=
      static_cast<ssize_t>(sizeof(words))) {
    return "its slot table cannot be read";
  }
  for (uint32_t slot = 0; slot < block::kArenaSlots; ++slot) {
    const auto inode = static_cast<uint32_t>(words[slot * kWords + kInode / 8] >> 32);
    if (words[slot * kWords] != 0 && (inode == 0 || locks.Inode(slot) != inode)) {
      return absl::StrCat("the lock file of slot ", slot,
                          " is gone, and its worker may be reading");
    }
  }
  return "";
}

std::string WhyBadShape(const block::ArenaHeader& header, uint64_t file_bytes) {
  if (header.slab_bytes < kUnit || header.slab_bytes % kUnit != 0 || header.slabs == 0 ||
      header.slabs > file_bytes / header.slab_bytes) {
    return "its slabs are damaged";
  }
  block::ArenaHeader want;
  LayOut(header.slab_bytes, header.slabs, &want);
  const bool same =
      header.file_bytes == want.file_bytes && file_bytes == want.file_bytes &&
      header.slots_offset == want.slots_offset && header.slabs_offset == want.slabs_offset &&
      header.spaces_offset == want.spaces_offset && header.spaces_bytes == want.spaces_bytes &&
      header.records_offset == want.records_offset &&
      header.slab_record_bytes == want.slab_record_bytes && header.data_offset == want.data_offset;
  return same ? "" : "it is laid out in another way";
}

// Returns why the file cannot be adopted; empty if it can.
std::string WhyUnusable(int fd, const SlotLocks& locks, const SharedFile::Options& options,
                        const base::Hash128& boot_id) {
  struct stat status = {};
  block::ArenaHeader header;
  if (fstat(fd, &status) != 0 || pread(fd, static_cast<void*>(&header), sizeof(header), 0) !=
                                     static_cast<ssize_t>(sizeof(header))) {
    return "it is too short";
  }
  if (header.magic != block::kArenaMagic) return "it is not an arena";
  if (header.version != block::kArenaVersion || header.header_bytes != sizeof(header)) {
    return absl::StrCat("it has version ", header.version, ", this is ", block::kArenaVersion);
  }
  if (header.check != HeaderCheck(header)) return "its header is damaged";
  if (std::memcmp(header.boot_id, boot_id.data(), boot_id.size()) != 0) {
    return "it is of another boot of the kernel";
  }
  if (std::memcmp(header.key_id, options.key_id.data(), options.key_id.size()) != 0) {
    return "the hashes in it are made with another key";
  }
  std::string why = WhyBadShape(header, static_cast<uint64_t>(status.st_size));
  if (!why.empty()) return why;
  why = WhyBadSlabs(fd, header, static_cast<uint64_t>(status.st_blocks) * 512);
  if (!why.empty()) return why;
  why = WhyBadLocks(fd, header, locks);
  if (!why.empty()) return why;
  if (SharedFile::LeastCapacity(header.slab_bytes, header.slabs) <= options.capacity_bytes) {
    return "";
  }
  return absl::StrCat("its slabs of ", base::FormatBytes(header.slab_bytes),
                      " do not fit into a capacity of ", base::FormatBytes(options.capacity_bytes));
}

// Sizes an owned, empty file and writes its header.
absl::Status Fill(const std::string& path, int fd, const SharedFile::Options& options,
                  const base::Hash128& boot_id) {
  block::ArenaHeader header;
  header.magic = block::kArenaMagic;
  header.version = block::kArenaVersion;
  header.header_bytes = sizeof(header);
  std::copy(boot_id.begin(), boot_id.end(), header.boot_id);
  std::copy(options.key_id.begin(), options.key_id.end(), header.key_id);
  if (!os::RandomBytes(std::as_writable_bytes(std::span(header.instance)))) {
    return Failed(path, "no random bytes");
  }
  LayOut(options.slab_bytes, options.max_capacity_bytes / options.slab_bytes, &header);
  header.check = HeaderCheck(header);
  if (ftruncate(fd, static_cast<off_t>(header.file_bytes)) != 0) {
    return Failed(path, "cannot be sized");
  }
  const uint64_t bytes = SharedFile::FixedBytes(header);
  void* const map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return Failed(path, "cannot be mapped");
  auto* const tables = static_cast<std::byte*>(map);
  os::AvoidHugePages(tables, bytes);
  const bool backed = os::AllocateSmallPages(fd, tables, 0, bytes);
  if (backed) {
    std::memcpy(map, static_cast<const void*>(&header), sizeof(header));
    auto* const slabs = tables + header.slabs_offset;
    for (uint64_t i = 0; i < header.slabs; ++i) {
      new (slabs + i * sizeof(block::SlabRecord)) block::SlabRecord();
    }
    base::NameHolder(fd, block::kArenaOwnerOffset);
  }
  munmap(map, bytes);
  if (backed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("arena: ", path, ": no memory for its tables"));
}

// Puts a new file in the place of `old` (owned, or none). Returns an empty descriptor if the path
// changed meanwhile: the caller looks again.
absl::StatusOr<base::Descriptor> MakeFile(const SharedFile::Options& options,
                                          const base::Descriptor& old,
                                          const base::Hash128& boot_id) {
  // One fixed name, so that a file that a killed daemon left is taken over. Nobody maps the file
  // under this name.
  const std::string fresh = options.path + ".new";
  base::Descriptor fd(open(fresh.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640));
  if (!fd) return Failed(fresh, "cannot be made");
  PREFIXD_RETURN_IF_ERROR(Own(fresh, fd.get(), options.lock_wait));
  struct stat named = {};
  const bool unchanged = old ? StandsAt(options.path, old.get())
                             : lstat(options.path.c_str(), &named) != 0 && errno == ENOENT;
  if (!StandsAt(fresh, fd.get())) return base::Descriptor();
  absl::Status status;
  if (unchanged && ftruncate(fd.get(), 0) != 0) status = Failed(fresh, "cannot be emptied");
  if (unchanged && status.ok()) status = Fill(fresh, fd.get(), options, boot_id);
  if (unchanged && status.ok() && rename(fresh.c_str(), options.path.c_str()) != 0) {
    status = Failed(options.path, "cannot be put in place");
  }
  if (unchanged && status.ok()) return fd;
  unlink(fresh.c_str());
  if (!status.ok()) return status;
  return base::Descriptor();
}

}  // namespace

void LayOut(uint64_t slab_bytes, uint64_t slabs, block::ArenaHeader* header) {
  header->slab_bytes = slab_bytes;
  header->slabs = slabs;
  header->slots_offset = kUnit;
  header->slabs_offset =
      base::AlignUp(kUnit + block::kArenaSlots * sizeof(block::SlotRecord), kUnit);
  header->spaces_offset =
      base::AlignUp(header->slabs_offset + slabs * sizeof(block::SlabRecord), kUnit);
  header->spaces_bytes = SpacesBytes(slabs * slab_bytes);
  header->records_offset = base::AlignUp(header->spaces_offset + header->spaces_bytes, kHugePage);
  header->slab_record_bytes = base::AlignUp(slab_bytes / kUnit * sizeof(block::PageRecord), kUnit);
  header->data_offset =
      base::AlignUp(header->records_offset + slabs * header->slab_record_bytes, kHugePage);
  header->file_bytes = header->data_offset + slabs * slab_bytes;
}

absl::StatusOr<OwnedFile> FindOrMakeFile(const SharedFile::Options& options) {
  PREFIXD_RETURN_IF_ERROR(base::CheckWay(options.path, "arena: " + options.path));
  PREFIXD_ASSIGN_OR_RETURN(const os::MountFacts folder, CheckFolder(options.path));
  PREFIXD_ASSIGN_OR_RETURN(const base::Hash128 boot_id, BootId());
  PREFIXD_ASSIGN_OR_RETURN(auto locks, SlotLocks::Open(options.path));
  PREFIXD_RETURN_IF_ERROR(locks->Own(options.lock_wait));
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    PREFIXD_ASSIGN_OR_RETURN(base::Descriptor old, OwnExisting(options.path, options.lock_wait));
    PREFIXD_RETURN_IF_ERROR(CheckRoom(options, folder, old.get()));
    std::string why;
    if (old) {
      why = WhyUnusable(old.get(), *locks, options, boot_id);
      if (why.empty()) {
        base::NameHolder(old.get(), block::kArenaOwnerOffset);
        return OwnedFile{.fd = std::move(old), .locks = std::move(locks), .replaced_why = ""};
      }
    }
    PREFIXD_ASSIGN_OR_RETURN(base::Descriptor made, MakeFile(options, old, boot_id));
    if (!made) continue;
    // Locks of another file's workers say nothing about this one.
    locks->RemoveAll();
    return OwnedFile{
        .fd = std::move(made), .locks = std::move(locks), .replaced_why = std::move(why)};
  }
  return absl::FailedPreconditionError(
      absl::StrCat("arena: ", options.path, " does not stand still"));
}

bool CouldBeOwned(const std::string& path) {
  if (!SlotLocks::HasNoOwner(path)) return false;
  if (base::IsUnlocked(path)) return true;
  const base::Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return fd && base::HolderHasEnded(fd.get(), block::kArenaOwnerOffset);
}

}  // namespace prefixd::ram
