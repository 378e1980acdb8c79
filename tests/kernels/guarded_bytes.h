// Memory between pages that nobody may touch: a kernel that reads or writes a byte too far dies.
// For tests of kernels/.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <span>

#include "gtest/gtest.h"

namespace prefixd::kernels {

class GuardedBytes {
 public:
  enum class At { kBegin, kEnd };  // which end of the bytes touches its guard page

  // A copy of `bytes`.
  GuardedBytes(std::span<const std::byte> bytes, At at) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inside = (bytes.size() + page - 1) / page * page;
    mapped_ = inside + 2 * page;
    void* memory = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
    EXPECT_EQ(mprotect(memory_ + page, inside, PROT_READ | PROT_WRITE), 0);
    bytes_ = {memory_ + page + (at == At::kEnd ? inside - bytes.size() : 0), bytes.size()};
    std::memcpy(bytes_.data(), bytes.data(), bytes.size());
  }
  ~GuardedBytes() { munmap(memory_, mapped_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  std::byte* data() const { return bytes_.data(); }
  bool operator==(std::span<const std::byte> other) const {
    return other.size() == bytes_.size() &&
           std::memcmp(other.data(), bytes_.data(), other.size()) == 0;
  }

 private:
  std::byte* memory_ = nullptr;
  size_t mapped_ = 0;
  std::span<std::byte> bytes_;
};

}  // namespace prefixd::kernels
