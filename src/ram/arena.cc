// Opening, and extents: which slab, which slot.
#include "ram/arena.h"

#include <sys/mman.h>
#include <unistd.h>

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
#include "os/machine.h"
#include "ram/make_file.h"
#include "ram/records.h"
#include "ram/shared_file.h"
#include "ram/space_table.h"

namespace prefixd::ram {
namespace {

constexpr uint64_t kMinSlabBytes = uint64_t{64} << 10;
constexpr uint64_t kMinDefaultSlabBytes = uint64_t{4} << 20;
constexpr uint64_t kSmallSlabBytes = uint64_t{16} << 20;
constexpr uint64_t kMaxDefaultSlabBytes = uint64_t{64} << 20;

// Aborts on a bug of our own, because others read this memory.
void Require(bool holds, const char* what, block::Extent extent) {
  if (holds) return;
  std::fprintf(stderr, "arena: %s: extent at offset %llu of %llu bytes\n", what,
               static_cast<unsigned long long>(extent.offset),
               static_cast<unsigned long long>(extent.bytes));
  std::abort();
}

uint64_t AlignDown(uint64_t value, uint64_t alignment) { return value - value % alignment; }

// A slab loses about half a page at its end, and each extent size about half a slab. With pages of
// 1 MiB a small arena loses least to both when it has fewer, larger slabs than a large one.
uint64_t DefaultSlabBytes(uint64_t capacity_bytes) {
  const uint64_t least = std::clamp(capacity_bytes / 32, kMinDefaultSlabBytes, kSmallSlabBytes);
  return AlignDown(
      std::min(capacity_bytes, std::clamp(capacity_bytes / 64, least, kMaxDefaultSlabBytes)),
      block::kExtentUnit);
}

uint64_t DefaultMaxCapacity(uint64_t capacity_bytes) {
  const auto machine =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return std::min(64 * capacity_bytes, machine);
}

// Returns how many slabs fit beside the tables, each cut into `in_slab` extents.
uint64_t SharedSlabs(uint64_t capacity_bytes, uint64_t slab_bytes, uint64_t in_slab) {
  block::ArenaHeader header;
  LayOut(slab_bytes, DefaultMaxCapacity(capacity_bytes) / slab_bytes, &header);
  const uint64_t tables = SharedFile::FixedBytes(header);
  const uint64_t of_slab =
      slab_bytes + base::AlignUp(in_slab * sizeof(block::PageRecord), block::kExtentUnit);
  return (capacity_bytes - std::min(capacity_bytes, tables)) / of_slab;
}

// At most half of the capacity: the records and tables stand beside the slab. From 2 MiB on, whole
// huge pages, so that no two slabs share one; of the sizes within a quarter of the default one that
// leaves the least of the capacity over when pages have 1 MiB.
uint64_t DefaultSharedSlabBytes(uint64_t capacity_bytes) {
  const uint64_t bytes =
      std::max(kMinSlabBytes, std::min(DefaultSlabBytes(capacity_bytes), capacity_bytes / 2));
  if (bytes < kHugePage) return AlignDown(bytes, block::kExtentUnit);
  uint64_t best = AlignDown(bytes, kHugePage), most_used = 0;
  for (uint64_t slab = AlignDown(bytes / 4 * 5, kHugePage); slab >= bytes / 4 * 3;
       slab -= kHugePage) {
    const uint64_t used = slab * SharedSlabs(capacity_bytes, slab, slab >> 20);
    if (slab > std::min(capacity_bytes / 2, kMaxDefaultSlabBytes) || used <= most_used) continue;
    best = slab;
    most_used = used;
  }
  return best;
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

// Returns the machine's NUMA nodes if it has several.
std::vector<unsigned> NodesToUse() {
  std::vector<unsigned> nodes = os::NumaNodes("");
  if (nodes.size() < 2) nodes.clear();
  return nodes;
}

}  // namespace

uint64_t Arena::DefaultSlab(uint64_t capacity_bytes, bool shared) {
  return shared ? DefaultSharedSlabBytes(capacity_bytes) : DefaultSlabBytes(capacity_bytes);
}

uint64_t Arena::PagesOf(uint64_t capacity_bytes, uint64_t page_bytes, bool shared) {
  const uint64_t slab_bytes = DefaultSlab(capacity_bytes, shared);
  const uint64_t extent_bytes = base::AlignUp(page_bytes, block::kExtentUnit);
  if (extent_bytes == 0 || extent_bytes > slab_bytes) return 0;
  const uint64_t in_slab = slab_bytes / extent_bytes;
  if (!shared) return capacity_bytes / slab_bytes * in_slab;
  return SharedSlabs(capacity_bytes, slab_bytes, in_slab) * in_slab;
}

absl::StatusOr<std::unique_ptr<Arena>> Arena::Open(const Options& options) {
  return options.path.empty() ? OpenPrivate(options) : OpenShared(options);
}

absl::StatusOr<std::unique_ptr<Arena>> Arena::OpenPrivate(const Options& options) {
  const uint64_t slab_bytes =
      options.slab_bytes != 0 ? options.slab_bytes : DefaultSlabBytes(options.capacity_bytes);
  PREFIXD_RETURN_IF_ERROR(CheckSizes(options.capacity_bytes, slab_bytes));
  const Shape shape = {.capacity_bytes = options.capacity_bytes,
                       .slab_bytes = slab_bytes,
                       .slabs = options.capacity_bytes / slab_bytes};
  void* const base = mmap(nullptr, shape.slabs * slab_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("arena: the kernel refuses a mapping of ",
                                                     base::FormatBytes(options.capacity_bytes),
                                                     ": ", strerror(errno)));
  }
  return std::unique_ptr<Arena>(
      new Arena(shape, static_cast<std::byte*>(base), nullptr, options.unpin_within));
}

absl::StatusOr<std::unique_ptr<Arena>> Arena::OpenShared(const Options& options) {
  const uint64_t capacity_bytes = options.capacity_bytes;
  SharedFile::Options file_options = {.path = options.path,
                                      .capacity_bytes = capacity_bytes,
                                      .max_capacity_bytes = options.max_capacity_bytes,
                                      .slab_bytes = options.slab_bytes != 0
                                                        ? options.slab_bytes
                                                        : DefaultSharedSlabBytes(capacity_bytes),
                                      .lock_wait = options.lock_wait,
                                      .key_id = options.key_id,
                                      .nodes = options.nodes.value_or(NodesToUse())};
  PREFIXD_RETURN_IF_ERROR(CheckSizes(capacity_bytes, file_options.slab_bytes));
  if (file_options.max_capacity_bytes == 0) {
    file_options.max_capacity_bytes = DefaultMaxCapacity(capacity_bytes);
  }
  file_options.max_capacity_bytes = std::max(file_options.max_capacity_bytes, capacity_bytes);
  const uint64_t least = SharedFile::LeastCapacity(
      file_options.slab_bytes, file_options.max_capacity_bytes / file_options.slab_bytes);
  if (capacity_bytes < least) {
    return absl::InvalidArgumentError(absl::StrCat("arena: capacity is ", capacity_bytes,
                                                   " bytes, one slab of ", file_options.slab_bytes,
                                                   " with its tables takes ", least));
  }
  PREFIXD_ASSIGN_OR_RETURN(std::unique_ptr<SharedFile> file, SharedFile::Open(file_options));
  const Shape shape = {.capacity_bytes = capacity_bytes,
                       .slab_bytes = file->header()->slab_bytes,
                       .slabs = file->header()->slabs};
  std::byte* const base = file->data();
  std::unique_ptr<Arena> arena(new Arena(shape, base, std::move(file), options.unpin_within));
  PREFIXD_RETURN_IF_ERROR(arena->Adopt(options.epoch));
  return arena;
}

Arena::Arena(const Shape& shape, std::byte* base, std::unique_ptr<SharedFile> file,
             std::chrono::milliseconds unpin_within)
    : shape_(shape),
      unpin_within_(unpin_within),
      file_(std::move(file)),
      base_(base),
      slabs_(shape.slabs) {
  capacity_bytes_ = shape.capacity_bytes;
  retire_from_ = static_cast<uint32_t>(slabs_.size());
  for (uint32_t i = 0; i < slabs_.size(); ++i) {
    slabs_[i].in_service = file_ == nullptr;
    (file_ == nullptr ? free_slabs_ : idle_slabs_).insert(i);
  }
  in_service_ = free_slabs_.size();
}

Arena::~Arena() {
  if (file_ == nullptr) munmap(base_, shape_.slabs * shape_.slab_bytes);
}

uint64_t Arena::ExtentBytes(uint64_t page_bytes, uint64_t full_page_bytes) const {
  if (full_page_bytes > shape_.slab_bytes) return 0;
  for (const uint64_t parts : {uint64_t{4}, uint64_t{2}}) {
    const uint64_t bytes = base::AlignUp((full_page_bytes + parts - 1) / parts, block::kExtentUnit);
    if (page_bytes <= bytes) return bytes;
  }
  return base::AlignUp(full_page_bytes, block::kExtentUnit);
}

bool Arena::HasFreeSlab() const {
  return !free_slabs_.empty() && *free_slabs_.begin() < retire_from_;
}

std::optional<uint32_t> Arena::SlabFor(uint64_t extent_bytes) {
  const auto open = open_slabs_.find(extent_bytes);
  if (open != open_slabs_.end() && *open->second.begin() < retire_from_) {
    return *open->second.begin();
  }
  if (!HasFreeSlab()) return std::nullopt;
  const uint32_t index = *free_slabs_.begin();
  if (file_ != nullptr && !SizeRecords(index, RecordBytes(extent_bytes))) return std::nullopt;
  free_slabs_.erase(index);
  if (file_ != nullptr) InitRecords(index, shape_.slab_bytes / extent_bytes);
  Cut(index, extent_bytes);
  return index;
}

// Makes the records of a slab that is about to be cut those of free extents. New memory is zeros,
// which would say that anybody may be reading.
void Arena::InitRecords(uint32_t index, uint64_t extents) {
  block::PageRecord* const records = file_->records(index);
  for (uint64_t i = 0; i < extents; ++i) {
    RetireRecord(records + i);
    ClearMarks(&records[i].marks);
  }
}

void Arena::WriteExtentBytes(uint32_t index, uint64_t extent_bytes) {
  file_->slab(index)->extent_units.store(
      block::Guarded(static_cast<uint32_t>(extent_bytes / block::kExtentUnit)),
      std::memory_order_release);
}

void Arena::Cut(uint32_t index, uint64_t extent_bytes) {
  Slab& slab = slabs_[index];
  slab.extent_bytes = extent_bytes;
  slab.filled_bytes = 0;
  slab.used.assign(shape_.slab_bytes / extent_bytes, false);
  slab.free_slots.resize(slab.used.size());
  std::iota(slab.free_slots.rbegin(), slab.free_slots.rend(), 0u);
  open_slabs_[extent_bytes].insert(index);
  if (file_ == nullptr) return;
  last_record_bytes_ = slab.record_bytes;
  wants_populating_ = true;  // for the slab that is next
  WriteExtentBytes(index, extent_bytes);
}

absl::Status Arena::Full(uint64_t extent_bytes) const {
  uint64_t same_size = 0;
  for (const Slab& slab : slabs_) same_size += slab.extent_bytes == extent_bytes ? 1 : 0;
  return absl::ResourceExhaustedError(absl::StrCat(
      "arena: no room for an extent of ", base::FormatBytes(extent_bytes), ": ",
      base::FormatBytes(extent_bytes_), " of ", base::FormatBytes(capacity_bytes_), " in use by ",
      extents_, " extents, ", same_size, " of ", file_ == nullptr ? slabs_.size() : in_service_,
      " slabs serve this size", tmpfs_full_ ? ", the tmpfs is full" : ""));
}

block::Extent Arena::Take(uint32_t index) {
  Slab& slab = slabs_[index];
  const uint32_t slot = slab.free_slots.back();
  slab.free_slots.pop_back();
  slab.used[slot] = true;
  if (slab.free_slots.empty()) CloseSlab(index);
  slab.filled_bytes = std::max(slab.filled_bytes, (slot + 1) * slab.extent_bytes);
  if (file_ != nullptr && slab.populated_bytes < PopulateEnd(slab, PopulateStep() / 2)) {
    wants_populating_ = true;
  }
  extent_bytes_ += slab.extent_bytes;
  ++extents_;
  return {.offset = index * shape_.slab_bytes + slot * slab.extent_bytes,
          .bytes = slab.extent_bytes};
}

void Arena::CloseSlab(uint32_t index) {
  const auto open = open_slabs_.find(slabs_[index].extent_bytes);
  if (open == open_slabs_.end()) return;
  open->second.erase(index);
  if (open->second.empty()) open_slabs_.erase(open);
}

absl::StatusOr<block::Extent> Arena::Allocate(uint64_t page_bytes, uint64_t full_page_bytes) {
  Require(page_bytes > 0 && page_bytes <= full_page_bytes, "page empty or above the full page",
          {.bytes = page_bytes});
  const uint64_t extent_bytes = ExtentBytes(page_bytes, full_page_bytes);
  if (extent_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("arena: a full page has ", full_page_bytes,
                                                   " bytes, limit ", shape_.slab_bytes,
                                                   " (one slab)"));
  }
  block::Extent extent;
  {
    base::MutexLock lock(mutex_);
    while (!extent) {
      if (const std::optional<uint32_t> index = SlabFor(extent_bytes)) {
        extent = Take(*index);
      } else if (HasFreeSlab() && LeavesRoom(RecordBytes(extent_bytes))) {
        AwaitSlab();  // what the slab's records need
      } else if (!BackSlab(RecordBytes(extent_bytes))) {
        return Full(extent_bytes);
      }
    }
  }
  ZeroBehind(page_bytes, extent);
  return extent;
}

std::optional<block::Extent> Arena::AllocateLarger(uint64_t page_bytes) {
  block::Extent extent;
  {
    base::MutexLock lock(mutex_);
    auto open = open_slabs_.lower_bound(page_bytes);
    while (open != open_slabs_.end() && *open->second.begin() >= retire_from_) ++open;
    if (open == open_slabs_.end()) return std::nullopt;
    extent = Take(*open->second.begin());
  }
  ZeroBehind(page_bytes, extent);
  return extent;
}

// Zeroes the extent behind the page, where another page may have left bytes.
void Arena::ZeroBehind(uint64_t page_bytes, block::Extent extent) {
  std::memset(data(extent) + page_bytes, 0, extent.bytes - page_bytes);
}

uint32_t Arena::SlotOf(block::Extent extent) const {
  Require(extent.offset < slabs_.size() * shape_.slab_bytes, "an extent outside the arena", extent);
  const Slab& slab = slabs_[extent.offset / shape_.slab_bytes];
  const uint64_t in_slab = extent.offset % shape_.slab_bytes;
  Require(extent.bytes != 0 && extent.bytes == slab.extent_bytes &&
              in_slab % slab.extent_bytes == 0 && in_slab / slab.extent_bytes < slab.used.size(),
          "an extent that was never given out", extent);
  const auto slot = static_cast<uint32_t>(in_slab / slab.extent_bytes);
  Require(slab.used[slot], "double free, or use after free", extent);
  return slot;
}

void Arena::Free(block::Extent extent) {
  base::MutexLock lock(mutex_);
  const uint32_t slot = SlotOf(extent);
  if (file_ != nullptr) {
    RetireRecord(RecordOf(extent));
    ClearMarks(&RecordOf(extent)->marks);
  }
  const auto index = static_cast<uint32_t>(extent.offset / shape_.slab_bytes);
  Slab& slab = slabs_[index];
  if (!slab.scrub.empty() && slab.scrub[slot]) ScrubSlot(index, slot);
  slab.used[slot] = false;
  slab.free_slots.push_back(slot);
  extent_bytes_ -= extent.bytes;
  --extents_;
  if (slab.used_slots() > 0) {
    open_slabs_[extent.bytes].insert(index);
    return;
  }
  CloseSlab(index);
  EmptySlab(index);
}

// Called when its last extent was freed: the slab may serve any size again.
void Arena::EmptySlab(uint32_t index) {
  Slab& slab = slabs_[index];
  slab.extent_bytes = 0;
  slab.filled_bytes = 0;
  slab.used = {};
  slab.scrub = {};
  slab.free_slots = {};
  free_slabs_.insert(index);
  if (file_ == nullptr) return;
  WriteExtentBytes(index, 0);
  Shrink();
}

SlabRange Arena::RangeOf(uint32_t index) const {
  const Slab& slab = slabs_[index];
  const uint64_t begin = index * shape_.slab_bytes;
  return {.begin = begin,
          .end = begin + shape_.slab_bytes,
          .extent_bytes = slab.used_slots() * slab.extent_bytes};
}

std::optional<SlabRange> Arena::CheapestSlabToEmpty(uint64_t extent_bytes,
                                                    std::span<const uint64_t> spared) const {
  base::MutexLock lock(mutex_);
  std::optional<SlabRange> cheapest;
  std::pair<uint64_t, uint64_t> least;
  for (uint32_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i].extent_bytes == 0 || slabs_[i].extent_bytes == extent_bytes) continue;
    const SlabRange range = RangeOf(i);
    const std::pair cost(i < spared.size() ? spared[i] : 0, range.extent_bytes);
    if (cheapest.has_value() && cost >= least) continue;
    cheapest = range;
    least = cost;
  }
  return cheapest;
}

ArenaStats Arena::stats() const {
  base::MutexLock lock(mutex_);
  const uint64_t data_bytes = capacity_bytes_ - std::min(capacity_bytes_, table_bytes_);
  const uint64_t usable = std::min<uint64_t>(data_bytes / shape_.slab_bytes, slabs_.size());
  const uint64_t in_use = in_service_ - free_slabs_.size();
  return {.capacity_bytes = usable * shape_.slab_bytes,
          .slab_bytes = shape_.slab_bytes,
          .slabs_in_use = in_use,
          .slabs_free = usable - std::min(usable, in_use),
          .slabs_in_service = in_service_,
          .extent_bytes = extent_bytes_,
          .extents = extents_,
          .table_bytes = table_bytes_,
          .longest_hold = longest_hold_.longest()};
}

}  // namespace prefixd::ram
