// The RAM budget, changed while the cache is open.
#include <algorithm>

#include "base/size.h"
#include "base/status.h"
#include "cache/room/room.h"

namespace prefixd::cache {

absl::StatusOr<Room::Cut> Room::CutFor(uint64_t ram_bytes) const {
  Cut cut;
  PREFIXD_ASSIGN_OR_RETURN(cut.shares, ram::Recut(ram_bytes, context_->shares));
  // What the index has, it keeps as far as it may.
  cut.index_bytes = std::clamp(context_->index_share_bytes.load(), cut.shares.index_bytes,
                               cut.shares.index_most_bytes);
  cut.arena_bytes = cut.shares.arena_bytes - (cut.index_bytes - cut.shares.index_bytes);
  return cut;
}

// Returns the largest budget in whole MiB, below `ram_bytes`, whose part for pages the arena's file
// has room for; 0 if there is none.
uint64_t Room::LargestBudget(uint64_t ram_bytes) const {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  uint64_t fits = 0, too_much = ram_bytes / kMiB;
  while (fits + 1 < too_much) {
    const uint64_t middle = fits + (too_much - fits) / 2;
    const absl::StatusOr<Cut> cut = CutFor(middle * kMiB);
    const bool is_more = cut.ok() && cut->arena_bytes > context_->arena->most_capacity_bytes();
    (is_more ? too_much : fits) = middle;
  }
  return fits * kMiB;
}

absl::Status Room::Resize(uint64_t ram_bytes) {
  base::MutexLock lock(budget_mutex_);
  PREFIXD_ASSIGN_OR_RETURN(const Cut cut, CutFor(ram_bytes));
  const ram::Arena& arena = *context_->arena;
  if (arena.shared() && cut.arena_bytes > arena.most_capacity_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "budget: ", base::FormatBytes(ram_bytes),
        " of RAM is more than the arena's file has room for since the start. While prefixd runs "
        "the most is ",
        base::FormatExact(LargestBudget(ram_bytes)),
        "; for more, start prefixd again with that --ram"));
  }
  PREFIXD_RETURN_IF_ERROR(
      CheckFloorsFit("RAM", tables_->limited.AllFloors().ram_bytes, cut.arena_bytes));
  PREFIXD_RETURN_IF_ERROR(context_->arena->Resize(cut.arena_bytes));
  context_->index_least_bytes = cut.shares.index_bytes;
  context_->index_most_bytes = cut.shares.index_most_bytes;
  context_->in_flight_share_bytes = cut.shares.in_flight_bytes;
  context_->ram_budget_bytes = ram_bytes;
  SetIndexShare(cut.index_bytes);
  context_->index->TrimMemory(cut.index_bytes / 16 * 15);
  SlabsChanged();
  return absl::OkStatus();
}

}  // namespace prefixd::cache
