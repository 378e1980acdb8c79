// The index's share of the RAM budget: it grows out of the arena when blocks, leases and
// reservations fill it, and gives back what it needs no more.
#include <algorithm>

#include "base/bytes.h"
#include "cache/room/room.h"

namespace prefixd::cache {
namespace {

// Emptying slabs in vain, or again and again for a need that comes and goes, would evict pages of
// others for nothing.
constexpr int64_t kGrowEvery = 100'000;       // us, after it failed
constexpr int64_t kShrinkEvery = 60'000'000;  // us
constexpr uint64_t kStep = uint64_t{1} << 20;
constexpr uint64_t kUnverifiedBytes = 36;  // index/account.cc
constexpr int kSlabsTried = 2;  // at a time: looking for the pages of one is a walk over the index

}  // namespace

void Room::FitIndex(const IndexNeeds& more) {
  const index::IndexCounts counts = context_->index->Counts();
  // After a restart every page in RAM stands in one order more until it is verified, which may be
  // after the index has to make room.
  unverified_bytes_ =
      context_->arena->shared() ? kUnverifiedBytes * context_->arena->stats().extents : 0;
  FitIndex({.memory_bytes = counts.memory_bytes, .table_bytes = counts.table_bytes}, more);
}

void Room::FitIndexForLeases() { FitIndex(context_->index->MemorySeen(), {}); }

void Room::FitIndex(const index::MemoryCounts& counts, const IndexNeeds& more) {
  // A sixteenth is left free. Tables may take half (index/reserve.cc), and the spaces of one
  // session a quarter (cache/tables/forget_spaces.cc).
  const uint64_t wanted =
      std::max({((counts.memory_bytes + more.bytes + unverified_bytes_) / 15 + 1) * 16,
                2 * (counts.table_bytes + more.table_bytes), 4 * more.space_bytes});
  const uint64_t share = context_->index_share_bytes;
  const int64_t now = context_->Now();
  if (wanted > share && share < context_->index_most_bytes && now >= grow_after_us_) {
    base::MutexLock lock(budget_mutex_);
    while (context_->index_share_bytes < wanted) {
      if (GrowIndex(wanted)) continue;
      grow_after_us_ = now + kGrowEvery;
      break;
    }
    shrink_after_us_ = now + kShrinkEvery;
  } else if (wanted < share / 4 && share > context_->index_least_bytes && now >= shrink_after_us_) {
    base::MutexLock lock(budget_mutex_);
    ShrinkIndex();
    shrink_after_us_ = now + kShrinkEvery;
  }
}

// What a slab has beyond the step is left for the next one.
bool Room::GrowIndex(uint64_t wanted_bytes) {
  const uint64_t share = context_->index_share_bytes, most = context_->index_most_bytes;
  const ram::ArenaStats stats = context_->arena->stats();
  const uint64_t bytes = std::min(
      {base::AlignUp(wanted_bytes - share, kStep), stats.slab_bytes, most - std::min(most, share)});
  const uint64_t left = stats.capacity_bytes - std::min(stats.capacity_bytes, stats.slab_bytes);
  const uint64_t floors = tables_->limited.AllFloors().ram_bytes;
  if (bytes == 0 || !CheckFloorsFit("RAM", floors, left).ok()) return false;
  for (int tried = 0; !context_->arena->GiveUp(bytes); ++tried) {
    if (tried == kSlabsTried || !EmptyCheapestSlab()) return false;
  }
  held_slabs_.clear();
  SetIndexShare(share + bytes);
  return true;
}

// A slab in which somebody holds pages does not become free; another one is tried the next time.
bool Room::EmptyCheapestSlab() {
  const uint64_t slab_bytes = context_->arena->stats().slab_bytes;
  std::vector<uint64_t> cost = context_->index->SparedBytes(slab_bytes);
  for (const uint64_t slab : held_slabs_) {
    cost.resize(std::max<size_t>(cost.size(), slab + 1));
    cost[slab] = ~uint64_t{0};
  }
  const std::optional<ram::SlabRange> slab = context_->arena->CheapestSlabToEmpty(0, cost);
  if (!slab.has_value()) return false;
  if (!held_slabs_.insert(slab->begin / slab_bytes).second) held_slabs_.clear();
  EmptySlab(*slab, 2 * slab_bytes);
  return true;
}

void Room::ShrinkIndex() {
  const uint64_t share = context_->index_share_bytes;
  const uint64_t above = share - std::min<uint64_t>(share, context_->index_least_bytes);
  const uint64_t bytes = std::min(context_->arena->stats().slab_bytes, above);
  if (bytes == 0) return;
  // The index keeps to the smaller share before the arena may grow.
  SetIndexShare(share - bytes);
  if (context_->index->Counts().memory_bytes > share - bytes) return SetIndexShare(share);
  context_->arena->TakeBack(bytes);
  SlabsChanged();
}

void Room::SetIndexShare(uint64_t bytes) {
  context_->index_share_bytes = bytes;
  context_->index->SetLimits(context_->IndexLimits(bytes));
}

}  // namespace prefixd::cache
