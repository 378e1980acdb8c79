#include "slices.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace prefixd::cuda {

absl::StatusOr<Slices> Slices::Plan(const Options& options) {
  const auto refuse = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("pin: ", parts...));
  };
  if (options.bytes == 0) return refuse("the arena has no bytes");
  if (options.slab_bytes == 0 || options.slab_bytes % kPageBytes != 0) {
    return refuse("slab_bytes is ", options.slab_bytes, ", must be a multiple of ", kPageBytes);
  }
  if (options.slice_bytes == 0) return refuse("slice_bytes is 0");
  Slices slices;
  slices.bytes_ = options.bytes;
  const uint64_t slabs = (options.slice_bytes - 1) / options.slab_bytes + 1;
  if (slabs > options.bytes / options.slab_bytes) {
    slices.slice_bytes_ = (options.bytes - 1) / kPageBytes * kPageBytes + kPageBytes;
  } else {
    slices.slice_bytes_ = slabs * options.slab_bytes;
  }
  const uint64_t count = (options.bytes - 1) / slices.slice_bytes_ + 1;
  if (count > kMostSlices) {
    return refuse(options.bytes, " bytes in slices of ", slices.slice_bytes_, " are ", count,
                  " slices, at most ", kMostSlices, " are accepted");
  }
  slices.count_ = count;
  slices.pinned_ = std::make_unique<std::atomic<bool>[]>(count);
  return slices;
}

Slice Slices::At(size_t i) const {
  const uint64_t offset = i * slice_bytes_;
  return {.offset = offset,
          .bytes = std::min(slice_bytes_, bytes_ - offset),
          .pinned = pinned_[i].load(std::memory_order_acquire)};
}

uint64_t Slices::pinned_bytes() const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < count_; ++i) {
    const Slice slice = At(i);
    if (slice.pinned) bytes += slice.bytes;
  }
  return bytes;
}

bool Slices::ArePinned(uint64_t offset, uint64_t bytes) const {
  if (bytes == 0 || offset >= bytes_ || bytes > bytes_ - offset) return false;
  for (uint64_t i = offset / slice_bytes_; i <= (offset + bytes - 1) / slice_bytes_; ++i) {
    if (!pinned_[i].load(std::memory_order_acquire)) return false;
  }
  return true;
}

std::vector<Slice> Slices::Cut(uint64_t offset, uint64_t bytes) const {
  std::vector<Slice> pieces;
  while (bytes > 0) {
    const size_t i = offset / slice_bytes_;
    const uint64_t piece = std::min(bytes, (i + 1) * slice_bytes_ - offset);
    pieces.push_back(
        {.offset = offset, .bytes = piece, .pinned = pinned_[i].load(std::memory_order_acquire)});
    offset += piece;
    bytes -= piece;
  }
  return pieces;
}

}  // namespace prefixd::cuda
