#include "cache/room/room.h"

#include <algorithm>
#include <utility>

namespace prefixd::cache {
namespace {

constexpr int kVainRounds = 3;       // of the spiller, before it takes what the SSD does not want
constexpr int kEvictedAtOnce = 256;  // blocks: making room in the index costs a walk over all

}  // namespace

// Gives up the coldest block; after two slabs' worth of extents in vain, a whole slab of another
// extent size, cold or not: one with the fewest bytes of spared blocks.
bool Room::EvictSomething(uint64_t extent_bytes, GiveUp what, uint64_t* evicted_bytes) {
  if (*evicted_bytes >= 2 * context_->arena->stats().slab_bytes) {
    *evicted_bytes = 0;
    const std::vector<uint64_t> spared =
        context_->index->SparedBytes(context_->arena->stats().slab_bytes);
    const std::optional<ram::SlabRange> slab =
        context_->arena->CheapestSlabToEmpty(extent_bytes, spared);
    if (slab.has_value() && EmptySlab(*slab, 0)) return true;
  }
  return EvictColdest(evicted_bytes, what);
}

bool Room::EvictColdest(uint64_t* evicted_bytes, GiveUp what) {
  tables_->pins.Expire();
  const std::optional<index::Evicted> evicted =
      context_->index->EvictOne(context_->MayDropDirty(), what);
  if (!evicted.has_value()) return false;
  *evicted_bytes += std::max<uint64_t>(evicted->bytes, 1);
  context_->CountEvicted(*evicted);
  context_->FreeTaken();
  return true;
}

bool Room::WaitForMore(const Patience& patience, const std::atomic<bool>* cancelled,
                       int* vain_rounds) {
  tables_->sessions.EndIdleReservations();
  const SpillDemand::Rounds seen = spill_->rounds();
  const index::IndexCounts counts = context_->index->Counts();
  // Also on a disk that fails: pages of a segment under way can be dropped once it is given up.
  const bool spillable = context_->store != nullptr && counts.dirty_bytes > 0;
  const bool held_by_others = counts.leases > 0 || counts.reservations > 1;
  // Pages of an earlier daemon without a copy on SSD can be spilled once they are verified.
  const bool verifying_rest = context_->unverified_left;
  if (patience.over() || (!spillable && !held_by_others && !verifying_rest)) return false;
  if (cancelled != nullptr && cancelled->load()) return false;
  if (spillable) spill_->Ask();
  // The short wait catches what happened between the last try and here.
  const SpillDemand::Rounds now = spill_->WaitBeyond(seen, patience.next_look());
  if (now.vain != seen.vain) ++*vain_rounds;
  return true;
}

// Pages of other sizes that stand loosely are put together first: that costs a copy, no page.
bool Room::MakeSlabByMoving(uint64_t extent_bytes) {
  const std::optional<ram::SlabRange> slab = context_->arena->CheapestSlabToEmpty(extent_bytes);
  return slab.has_value() && slab->extent_bytes <= context_->arena->stats().slab_bytes / 2 &&
         MoveOut(*slab, 0) > 0;
}

absl::StatusOr<block::Extent> Room::Take(uint64_t page_bytes, uint64_t full_page_bytes,
                                         const Patience& patience,
                                         const std::atomic<bool>* cancelled) {
  ram::Arena& arena = *context_->arena;
  const uint64_t extent_bytes = arena.ExtentBytes(page_bytes, full_page_bytes);
  uint64_t evicted_bytes = 0;
  bool moved = false;
  bool in_vain = false;
  int vain_rounds = 0;
  // What was read again stays while the spiller can make room of what was not.
  GiveUp what = GiveUp::kUnspared;
  bool insisted = false;
  while (true) {
    absl::StatusOr<block::Extent> extent = arena.Allocate(page_bytes, full_page_bytes);
    if (!extent.ok() && in_vain) {
      if (const auto larger = arena.AllocateLarger(page_bytes)) extent = *larger;
    }
    if (extent.ok()) {
      if (context_->store != nullptr && spill_->CleanBelow(SpillDemand::kStartEighths)) {
        spill_->Ask();
      }
      if (WantsMemoryAhead()) slab_work_.Notify();
      return extent;
    }
    if (!std::exchange(moved, true) && MakeSlabByMoving(extent_bytes)) continue;
    if (EvictSomething(extent_bytes, what, &evicted_bytes)) continue;
    // Every page is held or being written: those who wait for each other's slabs share them.
    if (!std::exchange(in_vain, true)) continue;
    if (vain_rounds >= kVainRounds) {
      vain_rounds = 0;
      if (std::exchange(insisted, true)) what = GiveUp::kWhatMayGo;
      context_->index->AdmitAll();
      spill_->Insist();
      context_->counters.Add("admission.overdrawn");
    }
    if (!WaitForMore(patience, cancelled, &vain_rounds)) {
      if (std::exchange(what, GiveUp::kWhatMayGo) == GiveUp::kUnspared) continue;
      context_->counters.Add("refused.ram_full");
      return extent.status();
    }
  }
}

// Blocks go by age, whether they stand in RAM or on SSD alone. Where pages are so small that RAM
// holds more blocks than the index does, what is on SSD alone would else be forgotten however often
// it is used, and what is clean before what is dirty.
void Room::MakeIndexRoom(const Patience& patience, const std::atomic<bool>* cancelled) {
  index::PrefixIndex& index = *context_->index;
  const auto sixteenths = [this](uint64_t n) { return context_->index_share_bytes / 16 * n; };
  const auto taken = [&index] { return index.Counts().memory_bytes; };
  FitIndex();
  if (taken() <= sixteenths(15)) return;
  context_->counters.Add("index.trimmed");
  for (int vain_rounds = 0;; FitIndex()) {
    const uint64_t limit = sixteenths(15), target = sixteenths(14);
    // Order counts no more after rounds of the spiller in vain.
    const GiveUp what = vain_rounds < kVainRounds ? GiveUp::kInOrder : GiveUp::kWhatMayGo;
    index.TrimMemory(target, what);
    if (taken() <= target) return;
    uint64_t evicted_bytes = 0;
    int evicted = 0;
    while (evicted < kEvictedAtOnce && EvictColdest(&evicted_bytes, what)) ++evicted;
    if (evicted > 0) continue;
    if (taken() <= limit) return;
    if (WaitForMore(patience, cancelled, &vain_rounds)) continue;
    if (what == GiveUp::kWhatMayGo) return;
    vain_rounds = kVainRounds;
  }
}

}  // namespace prefixd::cache
