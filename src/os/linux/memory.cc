#include "os/memory.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bitset>
#include <cerrno>
#include <utility>

#include "os/files.h"
#include "os/holds.h"

namespace prefixd::os {
namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE: Linux 5.14

}  // namespace

const char* LentMemory::Make(const char* name, const std::string& /*folder*/, uint64_t bytes) {
  fd_ = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd_ < 0) return "memfd_create";
  bytes_ = bytes;
  if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) return "ftruncate";
  if (!Allocate(fd_, 0, bytes)) return "fallocate";
  if (fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return "sealing";
  void* const base = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd_, 0);
  if (base == MAP_FAILED) return "mmap";
  base_ = static_cast<const std::byte*>(base);
  return nullptr;
}

LentMemory::~LentMemory() {
  if (base_ != nullptr) munmap(const_cast<std::byte*>(base_), bytes_);
  if (fd_ < 0) return;
  PunchHole(fd_, 0, bytes_);
  close(fd_);
}

int LentMemory::OpenForBorrower() {
  const int opened = OpenAgain(fd_, AT_FDCWD, "", O_RDWR);
  if (opened < 0 || Hold(opened)) return opened;
  const int error = errno;
  close(opened);
  errno = error;
  return -1;
}

bool LentMemory::IsHeld() const { return os::IsHeld(fd_); }

const std::byte* LentMemory::ReadFile(uint64_t, uint64_t, std::byte*) const { return nullptr; }

bool SealsMemory() { return true; }

bool KeepsItsSize(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

// Calls fallocate again each time a signal interrupts it.
bool Allocate(int fd, uint64_t offset, uint64_t bytes) {
  while (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

bool AllocateSmallPages(int fd, std::byte* map, uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return true;
  if (madvise(map + offset, bytes, kPopulateWrite) != 0) {
    return errno == EINVAL && Allocate(fd, offset, bytes);  // an older kernel
  }
  // An emulator of Linux may ignore the advice and say that it is done: qemu-user does.
  const off_t hole = lseek(fd, static_cast<off_t>(offset), SEEK_HOLE);
  return hole >= static_cast<off_t>(offset + bytes) || Allocate(fd, offset, bytes);
}

void Populate(std::byte* at, uint64_t bytes) { madvise(at, bytes, kPopulateWrite); }
bool ChoosesHugePages() { return true; }
void PreferHugePages(std::byte* at, uint64_t bytes) { madvise(at, bytes, MADV_HUGEPAGE); }
void AvoidHugePages(std::byte* at, uint64_t bytes) { madvise(at, bytes, MADV_NOHUGEPAGE); }
bool SpreadOverNodes(std::byte* at, uint64_t bytes, const std::vector<unsigned>& nodes) {
  int policy = MPOL_DEFAULT;
  if (syscall(SYS_get_mempolicy, &policy, nullptr, 0UL, at, MPOL_F_ADDR) != 0) return false;
  if (policy != MPOL_DEFAULT) return true;
  std::bitset<1024> mask;
  for (const unsigned node : nodes) {
    if (node < mask.size()) mask.set(node);
  }
  // The kernel looks at one bit less than it is told.
  return syscall(SYS_mbind, at, bytes, MPOL_INTERLEAVE, &mask, mask.size() + 1, 0U) == 0;
}
void DropPrivatePages(std::byte* at, uint64_t bytes) { madvise(at, bytes, MADV_DONTNEED); }

}  // namespace prefixd::os
