// Slices: how an arena is cut into the pieces that are registered one by one, and which of them
// are.
//
// A slice is a whole number of slabs, so no page crosses two slices; one slab where the daemon
// tells which slabs have memory. A slice is pinned if it is registered and its slab has had memory
// ever since. Thread-safe: slices become registered on one thread while others ask.
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
    uint64_t slice_bytes = 0;  // rounded up to slabs; not used with `service`
    // service[i * service_stride] of slab i, as prefixd_lease_arena() gives it; null: all slabs
    // have memory for good.
    const std::atomic<uint64_t>* service = nullptr;
    size_t service_stride = 0;
  };
  static constexpr uint64_t kPageBytes = 4096;  // of the machine
  static constexpr uint64_t kMostSlices = uint64_t{1} << 20;

  static absl::StatusOr<Slices> Plan(const Options& options);

  size_t count() const { return count_; }
  uint64_t slice_bytes() const { return slice_bytes_; }
  Slice At(size_t i) const;

  // A number of the memory that the slice has now; HasMemory() tells those of memory from those of
  // none. Never 0.
  uint64_t MemoryOf(size_t i) const;
  static bool HasMemory(uint64_t memory) { return memory % 2 != 0; }
  // The memory that is registered of the slice; 0: none.
  uint64_t RegisteredOf(size_t i) const { return registered_[i].load(std::memory_order_acquire); }
  void SetRegistered(size_t i, uint64_t memory) {
    registered_[i].store(memory, std::memory_order_release);
  }

  // Returns true if all of [offset, offset + bytes) is in pinned slices. Nothing is not pinned.
  bool ArePinned(uint64_t offset, uint64_t bytes) const;
  // Cuts [offset, offset + bytes) at the slices' borders. Requires: it is inside the arena.
  std::vector<Slice> Cut(uint64_t offset, uint64_t bytes) const;

 private:
  bool IsPinned(size_t i) const;

  Options options_;
  uint64_t slice_bytes_ = 0;
  size_t count_ = 0;
  std::unique_ptr<std::atomic<uint64_t>[]> registered_;
};

}  // namespace prefixd::cuda
