#include "ram/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>

#include "base/bytes.h"
#include "base/size.h"
#include "base/status.h"

namespace prefixd::ram {
namespace {

constexpr uint64_t kMinSlabBytes = uint64_t{64} << 10;
constexpr uint64_t kMinDefaultSlabBytes = uint64_t{4} << 20;
constexpr uint64_t kMaxDefaultSlabBytes = uint64_t{64} << 20;

// Our own bugs only: memory that others read is at stake.
void Require(bool holds, const char* what, block::Extent extent) {
  if (holds) return;
  std::fprintf(stderr, "arena: %s: extent at offset %llu of %llu bytes\n", what,
               static_cast<unsigned long long>(extent.offset),
               static_cast<unsigned long long>(extent.bytes));
  std::abort();
}

uint64_t AlignDown(uint64_t value) { return value - value % block::kExtentUnit; }

uint64_t DefaultSlabBytes(uint64_t capacity_bytes) {
  return AlignDown(std::min(
      capacity_bytes, std::clamp(capacity_bytes / 64, kMinDefaultSlabBytes, kMaxDefaultSlabBytes)));
}

absl::Status CheckSizes(uint64_t capacity_bytes, uint64_t slab_bytes) {
  if (capacity_bytes < kMinSlabBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "arena: capacity is ", capacity_bytes, " bytes, one slab takes at least ", kMinSlabBytes));
  }
  if (slab_bytes < kMinSlabBytes || slab_bytes > capacity_bytes ||
      slab_bytes % block::kExtentUnit != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "arena: slab is ", slab_bytes, " bytes, expected a multiple of ", block::kExtentUnit,
        " from ", kMinSlabBytes, " to the capacity of ", capacity_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Arena>> Arena::Create(const Options& options) {
  Options effective = options;
  if (effective.slab_bytes == 0) effective.slab_bytes = DefaultSlabBytes(options.capacity_bytes);
  PREFIXD_RETURN_IF_ERROR(CheckSizes(effective.capacity_bytes, effective.slab_bytes));
  effective.capacity_bytes -= effective.capacity_bytes % effective.slab_bytes;
  void* const base = mmap(nullptr, effective.capacity_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("arena: the kernel refuses a mapping of ",
                                                     base::FormatBytes(effective.capacity_bytes),
                                                     ": ", strerror(errno)));
  }
  return std::unique_ptr<Arena>(new Arena(effective, static_cast<std::byte*>(base)));
}

Arena::Arena(const Options& options, std::byte* base)
    : options_(options),
      base_(base),
      slabs_(options.capacity_bytes / options.slab_bytes),
      free_slabs_(slabs_.size()) {
  std::iota(free_slabs_.rbegin(), free_slabs_.rend(), 0u);
}

Arena::~Arena() { munmap(base_, options_.capacity_bytes); }

uint64_t Arena::ExtentBytes(uint64_t page_bytes, uint64_t full_page_bytes) const {
  if (full_page_bytes > options_.slab_bytes) return 0;
  for (const uint64_t parts : {uint64_t{4}, uint64_t{2}}) {
    const uint64_t bytes = base::AlignUp((full_page_bytes + parts - 1) / parts, block::kExtentUnit);
    if (page_bytes <= bytes) return bytes;
  }
  return base::AlignUp(full_page_bytes, block::kExtentUnit);
}

std::optional<uint32_t> Arena::SlabFor(uint64_t extent_bytes) {
  const auto open = open_slabs_.find(extent_bytes);
  if (open != open_slabs_.end()) return *open->second.begin();
  if (free_slabs_.empty()) return std::nullopt;
  const uint32_t index = free_slabs_.back();
  free_slabs_.pop_back();
  Slab& slab = slabs_[index];
  slab.extent_bytes = extent_bytes;
  slab.used.assign(options_.slab_bytes / extent_bytes, false);
  slab.free_slots.resize(slab.used.size());
  std::iota(slab.free_slots.rbegin(), slab.free_slots.rend(), 0u);
  open_slabs_[extent_bytes].insert(index);
  return index;
}

absl::Status Arena::Full(uint64_t extent_bytes) const {
  uint64_t same_size = 0;
  for (const Slab& slab : slabs_) same_size += slab.extent_bytes == extent_bytes ? 1 : 0;
  return absl::ResourceExhaustedError(
      absl::StrCat("arena: no room for an extent of ", base::FormatBytes(extent_bytes), ": ",
                   base::FormatBytes(extent_bytes_), " of ",
                   base::FormatBytes(options_.capacity_bytes), " in use by ", extents_,
                   " extents, ", same_size, " of ", slabs_.size(), " slabs serve this size"));
}

absl::StatusOr<block::Extent> Arena::Allocate(uint64_t page_bytes, uint64_t full_page_bytes) {
  Require(page_bytes > 0 && page_bytes <= full_page_bytes, "page empty or above the full page",
          {.bytes = page_bytes});
  const uint64_t extent_bytes = ExtentBytes(page_bytes, full_page_bytes);
  if (extent_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("arena: a full page has ", full_page_bytes,
                                                   " bytes, limit ", options_.slab_bytes,
                                                   " (one slab)"));
  }
  base::MutexLock lock(mutex_);
  const std::optional<uint32_t> index = SlabFor(extent_bytes);
  if (!index) return Full(extent_bytes);
  Slab& slab = slabs_[*index];
  const uint32_t slot = slab.free_slots.back();
  slab.free_slots.pop_back();
  slab.used[slot] = true;
  if (slab.free_slots.empty()) {
    const auto open = open_slabs_.find(extent_bytes);
    open->second.erase(*index);
    if (open->second.empty()) open_slabs_.erase(open);
  }
  extent_bytes_ += extent_bytes;
  ++extents_;
  return block::Extent{.offset = *index * options_.slab_bytes + slot * extent_bytes,
                       .bytes = extent_bytes};
}

uint32_t Arena::SlotOf(block::Extent extent) const {
  Require(extent.offset < options_.capacity_bytes, "free of an extent outside the arena", extent);
  const Slab& slab = slabs_[extent.offset / options_.slab_bytes];
  const uint64_t in_slab = extent.offset % options_.slab_bytes;
  Require(extent.bytes != 0 && extent.bytes == slab.extent_bytes &&
              in_slab % slab.extent_bytes == 0 && in_slab / slab.extent_bytes < slab.used.size(),
          "free of an extent that was never given out", extent);
  const auto slot = static_cast<uint32_t>(in_slab / slab.extent_bytes);
  Require(slab.used[slot], "double free", extent);
  return slot;
}

void Arena::Free(block::Extent extent) {
  base::MutexLock lock(mutex_);
  const uint32_t slot = SlotOf(extent);
  const auto index = static_cast<uint32_t>(extent.offset / options_.slab_bytes);
  Slab& slab = slabs_[index];
  slab.used[slot] = false;
  slab.free_slots.push_back(slot);
  extent_bytes_ -= extent.bytes;
  --extents_;
  if (slab.used_slots() > 0) {
    open_slabs_[extent.bytes].insert(index);
    return;
  }
  if (const auto open = open_slabs_.find(extent.bytes); open != open_slabs_.end()) {
    open->second.erase(index);
    if (open->second.empty()) open_slabs_.erase(open);
  }
  slab = Slab();
  free_slabs_.push_back(index);
}

std::optional<SlabRange> Arena::CheapestSlabToEmpty(uint64_t extent_bytes) const {
  base::MutexLock lock(mutex_);
  std::optional<SlabRange> cheapest;
  for (size_t i = 0; i < slabs_.size(); ++i) {
    const Slab& slab = slabs_[i];
    if (slab.extent_bytes == 0 || slab.extent_bytes == extent_bytes) continue;
    const uint64_t used_bytes = slab.used_slots() * slab.extent_bytes;
    if (cheapest && cheapest->extent_bytes <= used_bytes) continue;
    const uint64_t begin = i * options_.slab_bytes;
    cheapest =
        SlabRange{.begin = begin, .end = begin + options_.slab_bytes, .extent_bytes = used_bytes};
  }
  return cheapest;
}

ArenaStats Arena::stats() const {
  base::MutexLock lock(mutex_);
  return {.capacity_bytes = options_.capacity_bytes,
          .slab_bytes = options_.slab_bytes,
          .slabs_in_use = slabs_.size() - free_slabs_.size(),
          .slabs_free = free_slabs_.size(),
          .extent_bytes = extent_bytes_,
          .extents = extents_};
}

}  // namespace prefixd::ram
