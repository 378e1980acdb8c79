#include "ram/budget.h"

#include <algorithm>

#include "base/size.h"
#include "base/status.h"

namespace prefixd::ram {

namespace {

uint64_t IndexShare(uint64_t ram_budget_bytes) { return ram_budget_bytes / 16; }
uint64_t InFlightShare(uint64_t ram_budget_bytes) {
  return std::clamp<uint64_t>(ram_budget_bytes / 32, 4u << 20, 64u << 20);
}

// Returns what the parts other than the arena take of a budget.
uint64_t OtherBytes(uint64_t ram_budget_bytes, const BudgetShares& opened) {
  return IndexShare(ram_budget_bytes) + InFlightShare(ram_budget_bytes) + opened.ssd_bytes +
         opened.staging_bytes + opened.history_bytes;
}

// Returns the least budget that Recut takes, in whole MiB.
uint64_t LeastBudget(const BudgetShares& opened) {
  uint64_t least = kMinRamBudget;
  while (least < 2 * OtherBytes(least, opened)) least += uint64_t{1} << 20;
  return least;
}

}  // namespace

absl::StatusOr<BudgetShares> Recut(uint64_t ram_budget_bytes, const BudgetShares& opened) {
  BudgetShares shares = opened;
  shares.index_bytes = IndexShare(ram_budget_bytes);
  shares.in_flight_bytes = InFlightShare(ram_budget_bytes);
  const uint64_t others = OtherBytes(ram_budget_bytes, opened);
  if (ram_budget_bytes < kMinRamBudget || ram_budget_bytes < 2 * others) {
    return absl::InvalidArgumentError(absl::StrCat(
        "budget: ", base::FormatBytes(ram_budget_bytes), " of RAM is too little: ",
        base::FormatBytes(opened.ssd_bytes + opened.staging_bytes + opened.history_bytes),
        " are kept for staging, the SSD tier and the history of answers, whether in use or not, "
        "since the start, and pages get half of a budget or more. While prefixd runs the least is ",
        base::FormatBytes(LeastBudget(opened)),
        "; a start with --ram of that size cuts all of it anew"));
  }
  shares.arena_bytes = ram_budget_bytes - others;
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
  shares.history_bytes = std::min<uint64_t>(ram_budget_bytes / 128, 4u << 20);
  shares.in_flight_bytes = InFlightShare(ram_budget_bytes) - shares.history_bytes;
  shares.ssd_bytes = has_ssd ? std::clamp<uint64_t>(ram_budget_bytes / 16, 8u << 20, 64u << 20) : 0;
  shares.staging_bytes = shared_arena ? ram_budget_bytes / 16 : 0;
  shares.arena_bytes = ram_budget_bytes - shares.index_bytes - shares.in_flight_bytes -
                       shares.ssd_bytes - shares.staging_bytes - shares.history_bytes;
  return shares;
}

}  // namespace prefixd::ram
