#include "cache/budget.h"

#include <algorithm>

#include "base/size.h"
#include "base/status.h"

namespace prefixd::cache {

absl::StatusOr<BudgetShares> CutBudget(uint64_t ram_budget_bytes, bool has_ssd, bool shared_arena) {
  if (ram_budget_bytes < kMinRamBudget) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache: a RAM budget of ", base::FormatBytes(ram_budget_bytes),
                     " is too small, the least is ", base::FormatBytes(kMinRamBudget)));
  }
  BudgetShares shares;
  shares.index_bytes = ram_budget_bytes / 16;
  shares.in_flight_bytes = std::clamp<uint64_t>(ram_budget_bytes / 32, 4u << 20, 64u << 20);
  shares.ssd_bytes = has_ssd ? std::clamp<uint64_t>(ram_budget_bytes / 16, 8u << 20, 64u << 20) : 0;
  shares.staging_bytes = shared_arena ? ram_budget_bytes / 16 : 0;
  shares.history_bytes = std::min<uint64_t>(ram_budget_bytes / 64, 4u << 20);
  shares.arena_bytes = ram_budget_bytes - shares.index_bytes - shares.in_flight_bytes -
                       shares.ssd_bytes - shares.staging_bytes - shares.history_bytes;
  return shares;
}

}  // namespace prefixd::cache
