// Room in the arena: evict clean pages, let the spiller make more of them, empty a slab of another
// size.
#include <algorithm>

#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {

void Core::FreeTaken() {
  for (block::Extent extent : index->TakeFreed()) arena->Free(extent);
}

// Gives up the coldest block; after two slabs' worth of extents in vain, a whole slab of another
// extent size.
bool Core::EvictSomething(uint64_t extent_bytes, uint64_t* evicted_bytes) {
  const bool may_drop_dirty = store == nullptr || ssd_failing.load();
  const ram::ArenaStats stats = arena->stats();
  index::Evicted evicted;
  if (*evicted_bytes >= 2 * stats.slab_bytes) {
    *evicted_bytes = 0;
    if (std::optional<ram::SlabRange> slab = arena->CheapestSlabToEmpty(extent_bytes)) {
      evicted = index->EvictRange(slab->begin, slab->end, may_drop_dirty);
      counters.Add("slabs.emptied");
    }
  }
  if (evicted.pages == 0) {
    std::optional<index::Evicted> one = index->EvictOne(may_drop_dirty);
    if (!one.has_value()) return false;
    evicted = *one;
    *evicted_bytes += std::max<uint64_t>(evicted.bytes, 1);
  }
  counters.Add("pages.evicted", evicted.pages);
  counters.Add("bytes.evicted", evicted.bytes);
  if (evicted.dropped_pages > 0) counters.Add("pages.dropped", evicted.dropped_pages);
  FreeTaken();
  return true;
}

absl::StatusOr<block::Extent> Core::AllocateExtent(uint64_t page_bytes, uint64_t full_page_bytes,
                                                   base::Deadline deadline) {
  uint64_t evicted_bytes = 0;
  while (true) {
    absl::StatusOr<block::Extent> extent = arena->Allocate(page_bytes, full_page_bytes);
    if (extent.ok()) {
      if (store != nullptr && CleanBelow(2)) {
        base::MutexLock lock(spill_mutex);
        spill_wanted = true;
        spill_wake.NotifyAll();
      }
      return extent;
    }
    if (EvictSomething(arena->ExtentBytes(page_bytes, full_page_bytes), &evicted_bytes)) continue;
    const bool can_wait =
        store != nullptr && !ssd_failing.load() && index->Counts().dirty_bytes > 0;
    if (!can_wait || std::chrono::steady_clock::now() >= deadline) {
      counters.Add("refused.ram_full");
      return extent.status();
    }
    base::MutexLock lock(spill_mutex);
    const uint64_t round = spill_rounds;
    spill_wanted = true;
    spill_wake.NotifyAll();
    // A round that finished between the eviction above and here is caught by the short wait.
    const base::Deadline nap =
        Sooner(deadline, std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
    while (spill_rounds == round && !spill_stop && spill_done.WaitUntil(spill_mutex, nap)) {
    }
  }
}

}  // namespace prefixd::cache
