#include "ram/budget.h"

#include <algorithm>

#include "base/size.h"
#include "base/status.h"

namespace prefixd::ram {

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Names of pages of 1 MiB take less than a thousandth of what the pages take; those of blocks of a
// few KiB take more than a sixteenth, and so do the names of a large SSD tier.
uint64_t MostIndex(uint64_t ram_budget_bytes) { return ram_budget_bytes / 16; }
uint64_t IndexShare(uint64_t ram_budget_bytes) {
  return std::min(MostIndex(ram_budget_bytes), std::max(ram_budget_bytes / 128, 4 * kMiB));
}
uint64_t InFlightShare(uint64_t ram_budget_bytes) {
  const uint64_t share =
      std::max(ram_budget_bytes / 64, std::min(ram_budget_bytes / 32, 16 * kMiB));
  return std::clamp(share, 4 * kMiB, 64 * kMiB);
}
// Staging has what workers write between two commits.
uint64_t StagingShare(uint64_t ram_budget_bytes) {
  return std::min({ram_budget_bytes / 16, std::max(ram_budget_bytes / 64, 16 * kMiB), 256 * kMiB});
}
uint64_t SsdShare(uint64_t ram_budget_bytes) {
  return std::clamp(ram_budget_bytes / 64, 8 * kMiB, 64 * kMiB);
}

// Returns what the parts take that keep their size while the cache is open.
uint64_t FixedBytes(const BudgetShares& opened) {
  return opened.ssd_bytes + opened.staging_bytes + opened.history_bytes;
}

// Whether pages get half of the budget or more, also with the index at its largest.
bool LeavesHalf(uint64_t ram_budget_bytes, const BudgetShares& opened) {
  return ram_budget_bytes >=
         2 * (MostIndex(ram_budget_bytes) + InFlightShare(ram_budget_bytes) + FixedBytes(opened));
}

// Returns the least budget that Recut takes, in whole MiB.
uint64_t LeastBudget(const BudgetShares& opened) {
  uint64_t least = kMinRamBudget;
  while (!LeavesHalf(least, opened)) least += kMiB;
  return least;
}

}  // namespace

absl::StatusOr<BudgetShares> Recut(uint64_t ram_budget_bytes, const BudgetShares& opened) {
  if (ram_budget_bytes < kMinRamBudget || !LeavesHalf(ram_budget_bytes, opened)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "budget: ", base::FormatBytes(ram_budget_bytes),
        " of RAM is too little: ", base::FormatBytes(FixedBytes(opened)),
        " are kept for staging, the SSD tier and the history of answers, whether in use or not, "
        "since the start, and pages get half of a budget or more. While prefixd runs the least is ",
        base::FormatBytes(LeastBudget(opened)),
        "; to go below that, start prefixd again with a smaller --ram"));
  }
  BudgetShares shares = opened;
  shares.index_bytes = IndexShare(ram_budget_bytes);
  shares.index_most_bytes = MostIndex(ram_budget_bytes);
  shares.in_flight_bytes = InFlightShare(ram_budget_bytes);
  shares.arena_bytes =
      ram_budget_bytes - shares.index_bytes - shares.in_flight_bytes - FixedBytes(opened);
  return shares;
}

absl::StatusOr<BudgetShares> CutBudget(uint64_t ram_budget_bytes, bool has_ssd, bool shared_arena) {
  if (ram_budget_bytes < kMinRamBudget) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache: a RAM budget of ", base::FormatBytes(ram_budget_bytes),
                     " is too small, the least is ", base::FormatBytes(kMinRamBudget)));
  }
  BudgetShares shares;
  shares.index_bytes = IndexShare(ram_budget_bytes);
  shares.index_most_bytes = MostIndex(ram_budget_bytes);
  shares.history_bytes = std::min(ram_budget_bytes / 128, 4 * kMiB);
  shares.in_flight_bytes = InFlightShare(ram_budget_bytes) - shares.history_bytes;
  shares.ssd_bytes = has_ssd ? SsdShare(ram_budget_bytes) : 0;
  shares.staging_bytes = shared_arena ? StagingShare(ram_budget_bytes) : 0;
  shares.arena_bytes =
      ram_budget_bytes - shares.index_bytes - shares.in_flight_bytes - FixedBytes(shares);
  return shares;
}

}  // namespace prefixd::ram
