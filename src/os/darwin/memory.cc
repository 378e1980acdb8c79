#include "os/memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "os/files.h"

namespace prefixd::os {
namespace {

// Gives a file blocks behind its last one, all or none, and then its size.
bool Grow(int fd, uint64_t from, uint64_t to) {
  fstore_t blocks = {.fst_flags = F_ALLOCATEALL,
                     .fst_posmode = F_PEOFPOSMODE,
                     .fst_offset = 0,
                     .fst_length = static_cast<off_t>(to - from),
                     .fst_bytesalloc = 0};
  return fcntl(fd, F_PREALLOCATE, &blocks) != -1 && ftruncate(fd, static_cast<off_t>(to)) == 0;
}

}  // namespace

// No call gives blocks to a hole within a file, and writing zeros would race with who writes
// through a mapping. A page of a hole gets its memory when it is touched, and its block when the
// page leaves memory: it is only looked whether the disk has room for the range.
bool Allocate(int fd, uint64_t offset, uint64_t bytes) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) return false;
  const auto size = static_cast<uint64_t>(status.st_size);
  const uint64_t end = offset + bytes;
  if (end > size && !Grow(fd, size, end)) return false;
  const uint64_t within = std::min(end, size) - std::min(offset, size);
  const uint64_t holes =
      size - std::min(size, static_cast<uint64_t>(status.st_blocks) * 512);  // at least so many
  const std::optional<MountFacts> mount = MountOf(fd);
  if (!mount.has_value() || mount->free_bytes >= std::min(within, holes)) return true;
  errno = ENOSPC;
  return false;
}

bool AllocateAnywhere(int fd, uint64_t offset, uint64_t bytes) {
  return Allocate(fd, offset, bytes);
}

bool BacksHoles() { return false; }

// Offset and length must be multiples of the filesystem's block, of 4 KiB on APFS.
bool PunchHole(int fd, uint64_t offset, uint64_t bytes) {
  fpunchhole_t hole = {.fp_flags = 0,
                       .reserved = 0,
                       .fp_offset = static_cast<off_t>(offset),
                       .fp_length = static_cast<off_t>(bytes)};
  while (fcntl(fd, F_PUNCHHOLE, &hole) == -1) {
    if (errno != EINTR) return false;
  }
  return true;
}

}  // namespace prefixd::os
