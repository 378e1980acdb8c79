// Slices: how an arena is cut into the pieces that are registered one by one, and which of them
// are.
//
// A slice is a whole number of slabs, so no page crosses two slices. Thread-safe: slices become
// pinned on one thread while others ask.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

namespace prefixd::cuda {

// Bytes [offset, offset + bytes) of the arena.
struct Slice {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool pinned = false;
};

class Slices {
 public:
  struct Options {
    uint64_t bytes = 0;        // of the arena
    uint64_t slab_bytes = 0;   // a multiple of kPageBytes
    uint64_t slice_bytes = 0;  // rounded up to slabs
  };
  static constexpr uint64_t kPageBytes = 4096;  // of the machine
  static constexpr uint64_t kMostSlices = uint64_t{1} << 20;

  static absl::StatusOr<Slices> Plan(const Options& options);

  size_t count() const { return count_; }
  uint64_t slice_bytes() const { return slice_bytes_; }
  Slice At(size_t i) const;

  void SetPinned(size_t i, bool pinned) { pinned_[i].store(pinned, std::memory_order_release); }
  uint64_t pinned_bytes() const;

  // Returns true if all of [offset, offset + bytes) is in pinned slices. Nothing is not pinned.
  bool ArePinned(uint64_t offset, uint64_t bytes) const;
  // Cuts [offset, offset + bytes) at the slices' borders. Requires: it is inside the arena.
  std::vector<Slice> Cut(uint64_t offset, uint64_t bytes) const;

 private:
  uint64_t bytes_ = 0;
  uint64_t slice_bytes_ = 0;
  size_t count_ = 0;
  std::unique_ptr<std::atomic<bool>[]> pinned_;
};

}  // namespace prefixd::cuda
