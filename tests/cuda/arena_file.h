// A file in memory as the daemon has its arena: written through one mapping, read by a worker
// through another that it may only read.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <string>

#include "gtest/gtest.h"

namespace prefixd::cuda {

class ArenaFile {
 public:
  explicit ArenaFile(size_t bytes) : bytes_(bytes) {
    EXPECT_GE(file_, 0);
    EXPECT_EQ(ftruncate(file_, static_cast<off_t>(bytes)), 0);
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/self/fd/%d", file_);
    const int read_only = open(path, O_RDONLY | O_CLOEXEC);
    EXPECT_GE(read_only, 0);
    writer_ = Map(file_, PROT_READ | PROT_WRITE);
    reader_ = Map(read_only, PROT_READ);
    close(read_only);
  }
  ArenaFile(const ArenaFile&) = delete;
  ArenaFile& operator=(const ArenaFile&) = delete;
  ~ArenaFile() {
    munmap(writer_, bytes_);
    munmap(reader_, bytes_);
    close(file_);
  }

  std::byte* writer() const { return writer_; }
  const std::byte* reader() const { return reader_; }
  size_t bytes() const { return bytes_; }

  void Punch(size_t offset, size_t bytes) const {
    EXPECT_EQ(fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        static_cast<off_t>(offset), static_cast<off_t>(bytes)),
              0);
  }
  size_t allocated_bytes() const {
    struct stat info {};
    EXPECT_EQ(fstat(file_, &info), 0);
    return static_cast<size_t>(info.st_blocks) * 512;
  }

 private:
  std::byte* Map(int file, int protection) const {
    void* memory = mmap(nullptr, bytes_, protection, MAP_SHARED, file, 0);
    EXPECT_NE(memory, MAP_FAILED);
    return static_cast<std::byte*>(memory);
  }

  const int file_ = memfd_create("arena", MFD_CLOEXEC);
  const size_t bytes_;
  std::byte* writer_ = nullptr;
  std::byte* reader_ = nullptr;
};

}  // namespace prefixd::cuda
