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

// Nothing can be given up now: lets the spiller finish a round, or somebody's lease end. False when
// neither can come, or the deadline passed.
bool Core::WaitForRoom(base::Deadline deadline) {
  const auto now = std::chrono::steady_clock::now();
  const index::IndexCounts counts = index->Counts();
  // Of a disk that fails, too: pages in a segment under way can be dropped once it is given up.
  const bool spillable = store != nullptr && counts.dirty_bytes > 0;
  const bool held_by_others = counts.leases > 0 || counts.reservations > 1;
  if (now >= deadline || (!spillable && !held_by_others)) return false;
  base::MutexLock lock(spill_mutex);
  const uint64_t round = spill_rounds;
  if (spillable) {
    spill_wanted = true;
    spill_wake.NotifyAll();
  }
  // What happened between the last try and here is caught by the short wait.
  const base::Deadline nap =
      std::min<base::Deadline>(deadline, now + std::chrono::milliseconds(20));
  while (spill_rounds == round && !spill_stop && spill_done.WaitUntil(spill_mutex, nap)) {
  }
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
    if (!WaitForRoom(deadline)) {
      counters.Add("refused.ram_full");
      return extent.status();
    }
  }
}

}  // namespace prefixd::cache
