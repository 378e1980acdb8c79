// Room in the arena: empty a slab of another size, evict clean pages, let the spiller make more of
// them.
#include <algorithm>
#include <utility>

#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

constexpr int kVainRounds = 3;  // of the spiller, before it takes what the SSD does not want

}  // namespace

void Core::FreeTaken() {
  for (block::Extent extent : index->TakeFreed()) arena->Free(extent);
}

void Core::CountEvicted(const index::Evicted& evicted) {
  if (evicted.pages == 0) return;
  counters.AddAll({{"pages.evicted", evicted.pages}, {"bytes.evicted", evicted.bytes}});
  if (evicted.dropped_pages > 0) counters.Add("pages.dropped", evicted.dropped_pages);
}

// Gives up the coldest block; after two slabs' worth of extents in vain, a whole slab of another
// extent size.
bool Core::EvictSomething(uint64_t extent_bytes, uint64_t* evicted_bytes) {
  if (*evicted_bytes >= 2 * arena->stats().slab_bytes) {
    *evicted_bytes = 0;
    const std::optional<ram::SlabRange> slab = arena->CheapestSlabToEmpty(extent_bytes);
    if (slab.has_value() && EmptySlab(*slab, 0)) return true;
  }
  return EvictColdest(evicted_bytes);
}

bool Core::EvictColdest(uint64_t* evicted_bytes, index::PrefixIndex::GiveUp what) {
  ExpirePins();
  const bool may_drop_dirty = store == nullptr || ssd_failing.load();
  const std::optional<index::Evicted> evicted = index->EvictOne(may_drop_dirty, what);
  if (!evicted.has_value()) return false;
  *evicted_bytes += std::max<uint64_t>(evicted->bytes, 1);
  CountEvicted(*evicted);
  FreeTaken();
  return true;
}

void Core::WakeSpiller() {
  base::MutexLock lock(spill_mutex);
  spill_wanted = true;
  spill_wake.NotifyAll();
}

// Nothing can be given up now: lets the spiller finish a round, or somebody's lease end. False when
// neither can come, or patience is over.
bool Core::WaitForRoom(const Patience& patience, const std::atomic<bool>* cancelled,
                       int* vain_rounds) {
  EndIdleReservations();
  const index::IndexCounts counts = index->Counts();
  // Of a disk that fails, too: pages in a segment under way can be dropped once it is given up.
  const bool spillable = store != nullptr && counts.dirty_bytes > 0;
  const bool held_by_others = counts.leases > 0 || counts.reservations > 1;
  // What an earlier daemon left and has no copy on SSD can be spilled once it is verified.
  const bool verifying_rest = unverified_left.load();
  if (patience.over() || (!spillable && !held_by_others && !verifying_rest)) return false;
  if (cancelled != nullptr && cancelled->load()) return false;
  base::MutexLock lock(spill_mutex);
  const uint64_t round = spill_rounds, failures = spill_failures;
  if (spillable) {
    spill_wanted = true;
    spill_wake.NotifyAll();
  }
  // What happened between the last try and here is caught by the short wait.
  const base::Deadline nap = patience.next_look();
  while (spill_rounds == round && !spill_stop && spill_done.WaitUntil(spill_mutex, nap)) {
  }
  if (vain_rounds != nullptr && spill_failures != failures) ++*vain_rounds;
  return true;
}

index::PageInfo Core::AwaitPage(const index::PageRef& page, const Patience& patience) const {
  for (;;) {
    const index::PageInfo now = index->WaitWhilePromoting(page, patience.next_look());
    if (now.state != index::PageState::kPromoting || patience.over()) return now;
  }
}

// Pages of other sizes that stand loosely are put together first: that costs a copy, no page.
bool Core::MakeSlabByMoving(uint64_t extent_bytes) {
  const std::optional<ram::SlabRange> slab = arena->CheapestSlabToEmpty(extent_bytes);
  return slab.has_value() && slab->extent_bytes <= arena->stats().slab_bytes / 2 &&
         MoveOut(*slab, 0) > 0;
}

absl::StatusOr<block::Extent> Core::AllocateExtent(uint64_t page_bytes, uint64_t full_page_bytes,
                                                   const Patience& patience,
                                                   const std::atomic<bool>* cancelled) {
  const uint64_t extent_bytes = arena->ExtentBytes(page_bytes, full_page_bytes);
  uint64_t evicted_bytes = 0;
  bool moved = false;
  bool in_vain = false;
  int vain_rounds = 0;
  while (true) {
    absl::StatusOr<block::Extent> extent = arena->Allocate(page_bytes, full_page_bytes);
    if (!extent.ok() && in_vain) {
      if (const auto larger = arena->AllocateLarger(page_bytes)) extent = *larger;
    }
    if (extent.ok()) {
      if (store != nullptr && CleanBelow(2)) WakeSpiller();
      if (WantsMemoryAhead()) slab_bell.Ring();
      return extent;
    }
    if (!moved) {
      moved = true;
      if (MakeSlabByMoving(extent_bytes)) continue;
    }
    if (EvictSomething(extent_bytes, &evicted_bytes)) continue;
    // Every page is held or being written: those who wait for each other's slabs share them.
    if (!std::exchange(in_vain, true)) continue;
    if (vain_rounds >= kVainRounds) {
      vain_rounds = 0;
      index->AdmitAll();
      must_spill = true;
      counters.Add("admission.overdrawn");
    }
    if (!WaitForRoom(patience, cancelled, &vain_rounds)) {
      counters.Add("refused.ram_full");
      return extent.status();
    }
  }
}

}  // namespace prefixd::cache
