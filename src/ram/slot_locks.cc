#include "ram/slot_locks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/own_file.h"
#include "base/status.h"
#include "os/files.h"
#include "os/holds.h"

namespace prefixd::ram {
namespace {

constexpr const char* kOwner = "/owner";

std::string NameOf(uint32_t slot) { return absl::StrCat("slot-", slot, os::HoldKind()); }

absl::Status FolderFailed(const std::string& path, const char* what) {
  return absl::FailedPreconditionError(
      absl::StrCat("arena: ", path, ": ", what, ": ", strerror(errno)));
}

// Closes the folder to all other users. Fails if it is not this user's.
absl::Status MakePrivate(const std::string& path, int directory) {
  PREFIXD_RETURN_IF_ERROR(base::CheckOwner(directory, "arena: " + path));
  return fchmod(directory, 0700) == 0 ? absl::OkStatus()
                                      : FolderFailed(path, "cannot be made private");
}

}  // namespace

std::string SlotLocks::FolderOf(const std::string& arena_path) { return arena_path + ".locks"; }

SlotLocks::SlotLocks(const std::string& arena_path, base::Descriptor directory)
    : arena_path_(arena_path), folder_(FolderOf(arena_path)), directory_(std::move(directory)) {
  base::MutexLock lock(mutex_);
  for (uint32_t slot = 0; slot < block::kArenaSlots; ++slot) {
    files_[slot] = base::Descriptor(openat(directory_.get(), NameOf(slot).c_str(),
                                           O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  }
}

SlotLocks::~SlotLocks() {
  if (owner_) base::ForgetHolder(owner_.get(), 0);
}

absl::StatusOr<std::unique_ptr<SlotLocks>> SlotLocks::Open(const std::string& arena_path) {
  const std::string folder = FolderOf(arena_path);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return FolderFailed(folder, "cannot be made");
  }
  base::Descriptor directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) return FolderFailed(folder, "cannot be opened");
  PREFIXD_RETURN_IF_ERROR(MakePrivate(folder, directory.get()));
  return std::unique_ptr<SlotLocks>(new SlotLocks(arena_path, std::move(directory)));
}

absl::Status SlotLocks::Own(const base::LockWait& wait) {
  const std::string path = folder_ + kOwner;
  base::Descriptor owner(
      open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!owner) return FolderFailed(path, "cannot be opened");
  PREFIXD_RETURN_IF_ERROR(base::CheckOwner(owner.get(), "arena: " + path));
  const absl::Status locked = base::LockFile(owner.get(), "arena: " + arena_path_, 0, wait);
  if (absl::IsFailedPrecondition(locked)) {
    return absl::UnavailableError(
        absl::StrCat(std::string(locked.message()), ": it belongs to another running process"));
  }
  PREFIXD_RETURN_IF_ERROR(locked);
  base::NameHolder(owner.get(), 0);
  owner_ = std::move(owner);
  return absl::OkStatus();
}

bool SlotLocks::HasNoOwner(const std::string& arena_path) {
  return base::IsUnlocked(FolderOf(arena_path) + kOwner);
}

bool SlotLocks::Locked(uint32_t slot) const {
  base::MutexLock guard(mutex_);
  return files_[slot] && os::IsHeld(files_[slot].get());
}

uint64_t SlotLocks::LockedSlots() const {
  uint64_t locked = 0;
  for (uint32_t slot = 0; slot < block::kArenaSlots; ++slot) {
    if (Locked(slot)) locked |= uint64_t{1} << slot;
  }
  return locked;
}

uint32_t SlotLocks::Inode(uint32_t slot) const {
  base::MutexLock lock(mutex_);
  struct stat status = {};
  if (!files_[slot] || fstat(files_[slot].get(), &status) != 0) return 0;
  return static_cast<uint32_t>(status.st_ino);
}

absl::Status SlotLocks::Renew(uint32_t slot) {
  Remove(slot);
  base::MutexLock lock(mutex_);
  files_[slot] = base::Descriptor(openat(directory_.get(), NameOf(slot).c_str(),
                                         O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (files_[slot]) return absl::OkStatus();
  return FolderFailed(absl::StrCat(folder_, "/", NameOf(slot)), "cannot be made");
}

absl::StatusOr<base::Descriptor> SlotLocks::OpenLocked(uint32_t slot) const {
  base::MutexLock guard(mutex_);
  const std::string path = absl::StrCat(folder_, "/", NameOf(slot));
  // This very file: the name may be another daemon's, whose arena replaced this one.
  base::Descriptor opened(
      os::OpenAgain(files_[slot].get(), directory_.get(), NameOf(slot), O_RDONLY));
  if (!opened) return FolderFailed(path, "cannot be opened");
  if (!os::Hold(opened.get())) return FolderFailed(path, "cannot be locked");
  return opened;
}

void SlotLocks::Remove(uint32_t slot) {
  base::MutexLock lock(mutex_);
  unlinkat(directory_.get(), NameOf(slot).c_str(), 0);
  files_[slot] = base::Descriptor();
}

void SlotLocks::RemoveAll() {
  for (uint32_t slot = 0; slot < block::kArenaSlots; ++slot) Remove(slot);
}

}  // namespace prefixd::ram
