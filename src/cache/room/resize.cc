// The RAM budget, changed while the cache is open.
#include <algorithm>

#include "base/status.h"
#include "cache/room/room.h"

namespace prefixd::cache {

absl::Status Room::Resize(uint64_t ram_bytes) {
  base::MutexLock lock(budget_mutex_);
  PREFIXD_ASSIGN_OR_RETURN(const ram::BudgetShares cut, ram::Recut(ram_bytes, context_->shares));
  // What the index has, it keeps as far as it may.
  const uint64_t index_bytes =
      std::clamp(context_->index_share_bytes.load(), cut.index_bytes, cut.index_most_bytes);
  const uint64_t arena_bytes = cut.arena_bytes - (index_bytes - cut.index_bytes);
  PREFIXD_RETURN_IF_ERROR(
      CheckFloorsFit("RAM", tables_->limited.AllFloors().ram_bytes, arena_bytes));
  PREFIXD_RETURN_IF_ERROR(context_->arena->Resize(arena_bytes));
  context_->index_least_bytes = cut.index_bytes;
  context_->index_most_bytes = cut.index_most_bytes;
  context_->in_flight_share_bytes = cut.in_flight_bytes;
  context_->ram_budget_bytes = ram_bytes;
  SetIndexShare(index_bytes);
  context_->index->TrimMemory(index_bytes / 16 * 15);
  SlabsChanged();
  return absl::OkStatus();
}

}  // namespace prefixd::cache
