// The RAM budget, changed while the cache is open.
#include "base/status.h"
#include "cache/room/room.h"

namespace prefixd::cache {

absl::Status Room::Resize(uint64_t ram_bytes) {
  base::MutexLock lock(budget_mutex_);
  PREFIXD_ASSIGN_OR_RETURN(const ram::BudgetShares cut, ram::Recut(ram_bytes, context_->shares));
  PREFIXD_RETURN_IF_ERROR(
      CheckFloorsFit("RAM", tables_->limited.AllFloors().ram_bytes, cut.arena_bytes));
  PREFIXD_RETURN_IF_ERROR(context_->arena->Resize(cut.arena_bytes));
  context_->index->SetLimits(context_->IndexLimits(cut.index_bytes));
  context_->index_share_bytes = cut.index_bytes;
  context_->in_flight_share_bytes = cut.in_flight_bytes;
  context_->ram_budget_bytes = ram_bytes;
  context_->index->TrimMemory(cut.index_bytes / 16 * 15);
  SlabsChanged();
  return absl::OkStatus();
}

}  // namespace prefixd::cache
