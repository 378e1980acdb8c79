// Arena: the RAM tier. One mapped region cut into slabs; a slab is cut into equal extents, one page
// each.
//
// Thread-safe. Holds one mutex and calls nothing while holding it. The capacity is the hard limit
// of the RAM that pages can take: an extent that does not fit is refused, never granted and
// corrected later.
//
// Classes: pages of one (space, group, format) have a full size F; an extent is F, F/2 or F/4
// rounded up to 4 KiB units, the smallest that holds the page. A slab serves one extent size at a
// time and goes back to the common pool when its last extent is freed. No extent crosses a slab.
//
// The region is anonymous and private; a page of it takes memory when it is first written and keeps
// it from then on.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "block/extent.h"

namespace prefixd::ram {

struct ArenaStats {
  uint64_t capacity_bytes = 0;  // slabs x slab_bytes: what can be used of Options::capacity_bytes
  uint64_t slab_bytes = 0;
  uint64_t slabs_in_use = 0, slabs_free = 0;
  uint64_t extent_bytes = 0;  // allocated extents
  uint64_t extents = 0;
};

struct SlabRange {
  uint64_t begin = 0, end = 0;  // bytes from the arena's start
  uint64_t extent_bytes = 0;    // allocated in it
};

class Arena {
 public:
  struct Options {
    uint64_t capacity_bytes = uint64_t{1} << 30;
    // A multiple of 4 KiB, at least 64 KiB, at most the capacity.
    // 0 = clamp(capacity / 64, 4 MiB, 64 MiB), at most the capacity.
    uint64_t slab_bytes = 0;
  };
  // ResourceExhausted if the kernel refuses the mapping; InvalidArgument if the capacity is below
  // one slab of 64 KiB or slab_bytes is out of its range.
  static absl::StatusOr<std::unique_ptr<Arena>> Create(const Options& options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The class of a page: extent bytes that Allocate would take. 0 when full_page_bytes does not fit
  // into a slab.
  uint64_t ExtentBytes(uint64_t page_bytes, uint64_t full_page_bytes) const;
  // 4 KiB aligned space, contents undefined; the caller owns it until Free(). ResourceExhausted
  // says how much is in use when no slab has room: evict, then try again. InvalidArgument when a
  // full page does not fit into a slab. Requires: 0 < page_bytes <= full_page_bytes.
  absl::StatusOr<block::Extent> Allocate(uint64_t page_bytes, uint64_t full_page_bytes)
      PREFIXD_EXCLUDES(mutex_);
  // An extent that is not allocated, or not as it was given out, is our own bug: aborts, naming it.
  void Free(block::Extent extent) PREFIXD_EXCLUDES(mutex_);
  // Valid until Free(extent). The arena does not order readers and writers of these bytes.
  std::byte* data(block::Extent extent) const { return base_ + extent.offset; }

  // The slab that holds the fewest allocated bytes among those serving another extent size than
  // `extent_bytes`: emptying it gives the wanted size a slab. nullopt when there is none.
  std::optional<SlabRange> CheapestSlabToEmpty(uint64_t extent_bytes) const
      PREFIXD_EXCLUDES(mutex_);

  ArenaStats stats() const PREFIXD_EXCLUDES(mutex_);

 private:
  struct Slab {
    uint64_t extent_bytes = 0;         // 0 = free
    std::vector<uint32_t> free_slots;  // newest last: reuse warm lines
    std::vector<bool> used;            // by slot
    uint64_t used_slots() const { return used.size() - free_slots.size(); }
  };

  Arena(const Options& options, std::byte* base);
  // The slab to cut an extent from: one that serves this size, else a free one. nullopt: neither.
  std::optional<uint32_t> SlabFor(uint64_t extent_bytes) PREFIXD_REQUIRES(mutex_);
  absl::Status Full(uint64_t extent_bytes) const PREFIXD_REQUIRES(mutex_);
  // The slot of an extent in its slab. Aborts when there is no such extent.
  uint32_t SlotOf(block::Extent extent) const PREFIXD_REQUIRES(mutex_);

  const Options options_;  // sizes as they are in effect: whole slabs
  std::byte* const base_;  // owned, unmapped by the destructor
  mutable base::Mutex mutex_;
  std::vector<Slab> slabs_ PREFIXD_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_slabs_ PREFIXD_GUARDED_BY(mutex_);  // newest last: its memory is there
  // By extent size: slabs that serve it and have a free slot. The lowest is filled first, so that
  // the others run empty.
  std::map<uint64_t, std::set<uint32_t>> open_slabs_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t extent_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t extents_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::ram
