#include "os/held_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace prefixd::os {
namespace {

constexpr size_t kPageBytes = 4096;

// Closes the descriptor and keeps errno.
void Close(int fd) {
  const int error = errno;
  close(fd);
  errno = error;
}

}  // namespace

void PrepareForForks() {}

HeldFile::~HeldFile() {
  // In a child something else may be mapped there.
  if (page_ != nullptr && owner_ == getpid()) munmap(page_, kPageBytes);
}

bool HeldFile::Take(int fd) {
  // Never accessed.
  void* const page = mmap(nullptr, kPageBytes, PROT_NONE, MAP_SHARED, fd, 0);
  Close(fd);
  if (page == MAP_FAILED) return false;
  page_ = page;
  owner_ = getpid();
  return madvise(page, kPageBytes, MADV_DONTFORK) == 0;
}

HeldMapping::~HeldMapping() {
  if (base_ != nullptr && owner_ == getpid()) munmap(base_, bytes_);
}

const char* HeldMapping::Map(int fd, uint64_t bytes, Access access) {
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  const int flags = access == Access::kRead ? MAP_SHARED | MAP_NORESERVE : MAP_SHARED;
  void* const base = mmap(nullptr, bytes, protection, flags, fd, 0);
  Close(fd);
  if (base == MAP_FAILED) return "mmap";
  base_ = static_cast<std::byte*>(base);
  bytes_ = bytes;
  owner_ = getpid();
  return madvise(base, bytes, MADV_DONTFORK) == 0 ? nullptr : "madvise";
}

void HeldMapping::MakeLarge() {
  madvise(base_, bytes_, MADV_DONTDUMP);
  madvise(base_, bytes_, MADV_HUGEPAGE);
}

}  // namespace prefixd::os
