// A file in memory as the daemon has its arena: written through one mapping, read by a worker
// through another that it may only read.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <string>

#include "gtest/gtest.h"

namespace prefixd::cuda {

class ArenaFile {
 public:
  explicit ArenaFile(size_t bytes) : bytes_(bytes) {
    const int file = memfd_create("arena", MFD_CLOEXEC);
    EXPECT_GE(file, 0);
    EXPECT_EQ(ftruncate(file, static_cast<off_t>(bytes)), 0);
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    const int read_only = open(path, O_RDONLY | O_CLOEXEC);
    EXPECT_GE(read_only, 0);
    writer_ = Map(file, PROT_READ | PROT_WRITE);
    reader_ = Map(read_only, PROT_READ);
    close(read_only);
    close(file);
  }
  ArenaFile(const ArenaFile&) = delete;
  ArenaFile& operator=(const ArenaFile&) = delete;
  ~ArenaFile() {
    munmap(writer_, bytes_);
    munmap(reader_, bytes_);
  }

  std::byte* writer() const { return writer_; }
  const std::byte* reader() const { return reader_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* Map(int file, int protection) const {
    void* memory = mmap(nullptr, bytes_, protection, MAP_SHARED, file, 0);
    EXPECT_NE(memory, MAP_FAILED);
    return static_cast<std::byte*>(memory);
  }

  const size_t bytes_;
  std::byte* writer_ = nullptr;
  std::byte* reader_ = nullptr;
};

}  // namespace prefixd::cuda
