// Working memory of one call: one allocation, cut into aligned parts. Internal to kernels/.
#pragma once
#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

namespace prefixd::kernels {

inline constexpr size_t kScratchAlignment = 64;

struct FreeScratch {
  void operator()(std::byte* memory) const;
};
using ScratchMemory = std::unique_ptr<std::byte[], FreeScratch>;

// Returns memory that is not initialized, or ResourceExhausted.
absl::StatusOr<ScratchMemory> AllocateScratch(size_t bytes);

// Hands out parts of `memory`. If null, only adds up their sizes.
class ScratchParts {
 public:
  explicit ScratchParts(std::byte* memory) : memory_(memory) {}
  template <typename T>
  void Take(T*& part, size_t count) {
    if (memory_ != nullptr) part = reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (count * sizeof(T) + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* const memory_;
  size_t bytes_ = 0;
};

}  // namespace prefixd::kernels
