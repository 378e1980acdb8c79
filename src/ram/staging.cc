#include "ram/staging.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "base/descriptor.h"
#include "base/size.h"
#include "base/status.h"
#include "block/extent.h"

namespace prefixd::ram {
namespace {

// A worker that commits as fast as it can gains little from more: what it wrote is still in the
// CPU's cache when the daemon reads it.
constexpr uint64_t kEnoughBytes = uint64_t{16} << 20;
constexpr uint64_t kLeastShare = 64;  // of the budget; less is of no use to who wants more

absl::Status NoMemory(uint64_t bytes, const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "staging: ", base::FormatBytes(bytes), " wanted, ", what, " failed: ", strerror(errno)));
}

// Makes memory whose size cannot change: SIGBUS cannot hit whoever maps it.
absl::StatusOr<base::Descriptor> SealedMemory(uint64_t bytes) {
  const auto size = static_cast<off_t>(bytes);
  base::Descriptor fd(memfd_create("prefixd-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return NoMemory(bytes, "memfd_create");
  if (ftruncate(fd.get(), size) != 0) return NoMemory(bytes, "ftruncate");
  if (!base::AllocateRange(fd.get(), 0, 0, bytes)) return NoMemory(bytes, "fallocate");
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return NoMemory(bytes, "sealing");
  }
  return fd;
}

struct flock HolderLock(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  return lock;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Staging>> StagingPool::Grant(uint64_t wanted_bytes) {
  constexpr uint64_t kUnit = block::kExtentUnit;
  uint64_t granted = granted_.load(), bytes = 0;
  do {
    const uint64_t left = budget_ - granted;
    const uint64_t most = std::min(std::max(budget_ / 8, kEnoughBytes), left / 2) / kUnit * kUnit;
    bytes = std::min(base::AlignUp(std::min(wanted_bytes, most), kUnit), most);
    if (bytes == 0 || bytes < std::min(wanted_bytes, budget_ / kLeastShare)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("staging: ", base::FormatBytes(wanted_bytes), " wanted, ",
                       base::FormatBytes(granted), " of ", base::FormatBytes(budget_), " in use"));
    }
  } while (!granted_.compare_exchange_weak(granted, granted + bytes));
  absl::StatusOr<base::Descriptor> fd = SealedMemory(bytes);
  void* const base =
      fd.ok() ? mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd->get(), 0) : MAP_FAILED;
  if (base == MAP_FAILED) {
    const absl::Status status = fd.ok() ? NoMemory(bytes, "mmap") : fd.status();
    granted_ -= bytes;
    return status;
  }
  return std::unique_ptr<Staging>(
      new Staging(this, fd->Release(), static_cast<const std::byte*>(base), bytes));
}

Staging::~Staging() {
  munmap(const_cast<std::byte*>(base_), bytes_);
  // Otherwise a process that still has it mapped would keep its memory.
  base::AllocateRange(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes_);
  close(fd_);
  pool_->granted_ -= bytes_;
}

absl::StatusOr<int> Staging::OpenForWorker() const {
  base::Descriptor opened(open(absl::StrCat("/proc/self/fd/", fd_).c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock = HolderLock(F_RDLCK);
  if (opened && fcntl(opened.get(), F_OFD_SETLK, &lock) == 0) return opened.Release();
  return absl::ResourceExhaustedError(absl::StrCat("staging: no descriptor: ", strerror(errno)));
}

bool Staging::held() const {
  struct flock lock = HolderLock(F_WRLCK);
  return fcntl(fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace prefixd::ram
