// Slabs: emptied so that another extent size, or a smaller budget, can have them, and backed ahead
// of need: whole slabs get memory, and a step before where one is being filled is mapped too.
#include <cstring>

#include "cache/core.h"

namespace prefixd::cache {
namespace {

constexpr uint64_t kSlabsAhead = 2;
constexpr std::chrono::milliseconds kRetryAfter(50);

}  // namespace

// Extents inside the slab that come up meanwhile are put aside: they would be emptied again.
std::optional<block::Extent> Core::PlaceOutside(const index::PageInfo& page,
                                                const ram::SlabRange& slab,
                                                std::vector<block::Extent>* inside) {
  const SpacePtr space = SpaceOf(page.name.space);
  if (space == nullptr) return std::nullopt;
  while (true) {
    const absl::StatusOr<block::Extent> extent =
        arena->Allocate(page.page_bytes, space->FullPageBytes(page.ref.group, page.ref.rung));
    if (!extent.ok()) return std::nullopt;
    if (extent->offset < slab.begin || extent->offset >= slab.end) return *extent;
    inside->push_back(*extent);
  }
}

// The bytes may be given up, and the extent reused, while they are copied: nobody holds them. Hence
// the check of the copy.
bool Core::MovePage(const index::PageInfo& page, block::Extent to) {
  std::memcpy(arena->data(to), arena->data(page.extent), page.page_bytes);
  if (block::PageCheck(page.name, {arena->data(to), page.page_bytes}) != page.check) return false;
  base::MutexLock lock(clear_mutex);
  WriteRecord(page, to);
  return index->FinishMove(page.ref, page.extent, to, arena->marks(to));
}

size_t Core::MoveOut(const ram::SlabRange& slab, uint64_t may_evict) {
  std::vector<block::Extent> inside;
  size_t moved = 0;
  uint64_t evicted = 0;
  for (const index::PageInfo& page : index->PickMovable(slab.begin, slab.end)) {
    std::optional<block::Extent> to = PlaceOutside(page, slab, &inside);
    while (!to.has_value() && evicted < may_evict && EvictColdest(&evicted)) {
      to = PlaceOutside(page, slab, &inside);
    }
    if (!to.has_value()) break;
    if (MovePage(page, *to)) {
      ++moved;
    } else {
      arena->Free(*to);
    }
  }
  if (moved > 0) counters.Add("pages.moved", moved);
  for (block::Extent extent : inside) arena->Free(extent);
  FreeTaken();
  return moved;
}

bool Core::EmptySlab(const ram::SlabRange& slab, uint64_t may_evict) {
  const size_t moved = MoveOut(slab, may_evict);
  const bool may_drop_dirty = store == nullptr || ssd_failing.load();
  const index::Evicted evicted = index->EvictRange(slab.begin, slab.end, may_drop_dirty);
  CountEvicted(evicted);
  FreeTaken();
  counters.Add("slabs.emptied");
  return moved + evicted.pages > 0;
}

bool Core::RetireSlab() {
  const std::optional<ram::SlabRange> slab = arena->SlabToRetire();
  if (!slab.has_value()) return false;
  // What is coldest goes, wherever it stands, not what happens to stand in this slab.
  if (!EmptySlab(*slab, 2 * arena->stats().slab_bytes) && store != nullptr) {
    WakeSpiller();  // what is left may be dirty
  }
  return true;
}

bool Core::WantsMemoryAhead() const { return arena->wants_populating() || WantsSlab(); }

bool Core::WantsSlab() const {
  if (!arena->shared() || all_backed) return false;
  const ram::ArenaStats stats = arena->stats();
  return stats.slabs_in_service - stats.slabs_in_use < kSlabsAhead;
}

void Core::SlabLoop() {
  bool retiring = true;
  do {
    retiring = RetireSlab();
    bool more = true;
    while (more) {
      while (arena->PopulateAhead()) {
      }
      more = !retiring && WantsSlab();
      if (more) all_backed = !arena->BackOneMore();
    }
  } while (slab_bell.Wait(retiring ? std::optional(kRetryAfter) : std::nullopt));
}

}  // namespace prefixd::cache
