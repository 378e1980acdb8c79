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
  if (options.service != nullptr &&
      (options.service_stride == 0 || options.bytes % options.slab_bytes != 0)) {
    return refuse(options.bytes, " bytes are not slabs of ", options.slab_bytes,
                  ", or service_stride is 0: give what prefixd_lease_arena() gave");
  }
  Slices slices;
  slices.options_ = options;
  const uint64_t slabs =
      options.service != nullptr ? 1 : (options.slice_bytes - 1) / options.slab_bytes + 1;
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
  slices.registered_ = std::make_unique<std::atomic<uint64_t>[]>(count);
  return slices;
}

Slice Slices::At(size_t i) const {
  const uint64_t offset = i * slice_bytes_;
  return {.offset = offset,
          .bytes = std::min(slice_bytes_, options_.bytes - offset),
          .pinned = IsPinned(i)};
}

uint64_t Slices::MemoryOf(size_t i) const {
  if (options_.service == nullptr) return 1;
  return options_.service[i * options_.service_stride].load(std::memory_order_acquire);
}

bool Slices::IsPinned(size_t i) const {
  const uint64_t registered = RegisteredOf(i);
  return registered != 0 && registered == MemoryOf(i);
}

bool Slices::ArePinned(uint64_t offset, uint64_t bytes) const {
  if (bytes == 0 || offset >= options_.bytes || bytes > options_.bytes - offset) return false;
  for (uint64_t i = offset / slice_bytes_; i <= (offset + bytes - 1) / slice_bytes_; ++i) {
    if (!IsPinned(i)) return false;
  }
  return true;
}

std::vector<Slice> Slices::Cut(uint64_t offset, uint64_t bytes) const {
  std::vector<Slice> pieces;
  while (bytes > 0) {
    const size_t i = offset / slice_bytes_;
    const uint64_t piece = std::min(bytes, (i + 1) * slice_bytes_ - offset);
    pieces.push_back({.offset = offset, .bytes = piece, .pinned = IsPinned(i)});
    offset += piece;
    bytes -= piece;
  }
  return pieces;
}

}  // namespace prefixd::cuda
