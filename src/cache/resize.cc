// Budgets that change while the cache is open.
#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {

namespace {

absl::Status CheckFloors(const char* tier, uint64_t floor_bytes, uint64_t tier_bytes) {
  const uint64_t most = MostFloorBytes(tier_bytes);
  if (floor_bytes <= most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "budget: spaces have floors of ", base::FormatBytes(floor_bytes), " in ", tier,
      ", with that budget they may be ", base::FormatBytes(most), " (80 % of the tier)"));
}

}  // namespace

absl::Status Core::ResizeRam(uint64_t ram_bytes) {
  base::MutexLock lock(budget_mutex);
  PREFIXD_ASSIGN_OR_RETURN(const BudgetShares cut, Recut(ram_bytes, shares));
  PREFIXD_RETURN_IF_ERROR(CheckFloors("RAM", limited.AllFloors().ram_bytes, cut.arena_bytes));
  PREFIXD_RETURN_IF_ERROR(arena->Resize(cut.arena_bytes));
  const uint64_t arena_bytes = arena->stats().capacity_bytes;
  index->SetLimits(arena_bytes / 2, arena_bytes / 10 * 8, cut.index_bytes,
                   SnapshotShare(arena_bytes));
  index_share_bytes = cut.index_bytes;
  in_flight_share_bytes = cut.in_flight_bytes;
  ram_budget_bytes = ram_bytes;
  index->TrimMemory(cut.index_bytes / 16 * 15);
  all_backed = false;
  slab_bell.Ring();
  return absl::OkStatus();
}

absl::Status Core::CheckSsdBudget(uint64_t ssd_bytes) const {
  if (store == nullptr) {
    return absl::FailedPreconditionError(
        "budget: prefixd runs without an SSD tier; start it with an SSD budget");
  }
  if (ssd_bytes < 2 * options.segment_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("budget: ", base::FormatBytes(ssd_bytes),
                                                   " on SSD is too little, two segments are ",
                                                   base::FormatBytes(2 * options.segment_bytes)));
  }
  return CheckFloors("SSD", limited.AllFloors().ssd_bytes, ssd_bytes);
}

absl::Status Core::ResizeSsd(uint64_t ssd_bytes) {
  base::MutexLock segment(segment_mutex);
  ssd_budget_bytes = ssd_bytes;
  Leaving none;
  if (MakeSsdRoom(0, ~uint64_t{0}, &none) != SsdRoom::kNone) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("budget: ", base::FormatBytes(store->FileBytes()),
                                             " are on SSD still, their files cannot be removed"));
}

absl::StatusOr<block::BudgetState> Cache::SetBudgets(uint64_t ram_bytes, uint64_t ssd_bytes) {
  // Both or neither.
  if (ssd_bytes > 0) PREFIXD_RETURN_IF_ERROR(core_->CheckSsdBudget(ssd_bytes));
  if (ram_bytes > 0) PREFIXD_RETURN_IF_ERROR(core_->ResizeRam(ram_bytes));
  if (ssd_bytes > 0) PREFIXD_RETURN_IF_ERROR(core_->ResizeSsd(ssd_bytes));
  const block::Stats stats = GetStats();
  block::BudgetState state{.ram_budget_bytes = stats.ram_budget_bytes,
                           .ram_over_bytes = core_->arena->OverBytes(),
                           .ssd_budget_bytes = stats.ssd_budget_bytes,
                           .ssd_file_bytes = stats.ssd_file_bytes};
  for (const block::NamedCount& part : stats.ram_parts) state.ram_used_bytes += part.value;
  core_->Log(LogLevel::kInfo,
             absl::StrCat("budgets: RAM ", base::FormatBytes(state.ram_budget_bytes), ", SSD ",
                          base::FormatBytes(state.ssd_budget_bytes)));
  return state;
}

}  // namespace prefixd::cache
