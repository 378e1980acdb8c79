#include "os/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "os/files.h"
#include "os/holds.h"
#include "os/machine.h"

namespace prefixd::os {
namespace {

constexpr int kAttempts = 16;  // at names that somebody else made

// Returns a name that nobody has, with errno 0, or "".
std::string FreshName(const char* name) {
  std::array<std::byte, 12> random;
  if (!RandomBytes(random)) return "";
  std::string fresh = std::string(name) + "-";
  for (const std::byte byte : random) {
    constexpr const char* kDigits = "0123456789abcdef";
    fresh += kDigits[std::to_integer<unsigned>(byte) >> 4];
    fresh += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return fresh;
}

// Makes an empty file in `folder`, opens it twice and takes its name away.
bool MakeNameless(const std::string& folder, const char* name, int* first, int* second) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::string fresh = FreshName(name);
    if (fresh.empty()) return false;
    const std::string path = folder + "/" + fresh;
    *first = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (*first < 0 && errno == EEXIST) continue;
    if (*first < 0) return false;
    *second = OpenAgain(*first, AT_FDCWD, path, O_RDWR);
    const int error = errno;
    unlink(path.c_str());
    errno = error;
    return *second >= 0;
  }
  return false;
}

}  // namespace

const char* LentMemory::Make(const char* name, const std::string& folder, uint64_t bytes) {
  const std::string where = folder.empty() ? FolderForSharedMemory() : folder;
  if (!MakeNameless(where, name, &fd_, &for_borrower_)) return "open";
  bytes_ = bytes;
  if (!Allocate(fd_, 0, bytes)) return "posix_fallocate";
  return nullptr;
}

LentMemory::~LentMemory() {
  if (for_borrower_ >= 0) close(for_borrower_);
  if (fd_ < 0) return;
  PunchHole(fd_, 0, bytes_);
  close(fd_);
}

int LentMemory::OpenForBorrower() {
  if (for_borrower_ < 0) errno = EBUSY;
  if (for_borrower_ < 0 || !Hold(for_borrower_)) return -1;
  return std::exchange(for_borrower_, -1);
}

bool LentMemory::IsHeld() const { return os::IsHeld(fd_); }

const std::byte* LentMemory::ReadFile(uint64_t offset, uint64_t bytes, std::byte* place) const {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd_, place + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return nullptr;
    done += static_cast<uint64_t>(got);
  }
  return place;
}

bool SealsMemory() { return false; }
bool KeepsItsSize(int) { return true; }

bool AllocateSmallPages(int fd, std::byte* map, uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return true;
  if (!Allocate(fd, offset, bytes)) return false;
  Populate(map + offset, bytes);
  return true;
}

// Reads a byte of each page.
void Populate(std::byte* at, uint64_t bytes) {
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (uint64_t i = 0; i < bytes; i += page_bytes) {
    (void)*static_cast<volatile const std::byte*>(at + i);
  }
}

bool ChoosesHugePages() { return false; }
bool SpreadOverNodes(std::byte*, uint64_t, const std::vector<unsigned>&) {
  errno = ENOSYS;
  return false;
}
void PreferHugePages(std::byte*, uint64_t) {}
void AvoidHugePages(std::byte*, uint64_t) {}

// New pages in the place of the old ones; zeros where only a part of a page is meant, as pages may
// be larger than the range's unit.
void DropPrivatePages(std::byte* at, uint64_t bytes) {
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(at);
  const auto end = static_cast<uintptr_t>(begin + bytes);
  const uintptr_t first = std::min(end, (begin + page_bytes - 1) / page_bytes * page_bytes);
  const uintptr_t last = std::max(first, end / page_bytes * page_bytes);
  std::memset(at, 0, first - begin);
  std::memset(at + (last - begin), 0, end - last);
  if (first == last) return;
  mmap(at + (first - begin), last - first, PROT_READ | PROT_WRITE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

}  // namespace prefixd::os
