// Cuts the one RAM budget into the shares of its parts. Each part keeps to its share by itself, so
// the sum is within the budget at every moment.
#pragma once
#include <cstdint>

#include "absl/status/statusor.h"

namespace prefixd::ram {

struct BudgetShares {
  // Pages and, in a shared arena, their records. What the index has beyond index_bytes is taken
  // from it.
  uint64_t arena_bytes = 0;
  uint64_t staging_bytes = 0;     // what workers write into; only with a shared arena
  uint64_t index_bytes = 0;       // tree, leases, reservations: at the start
  uint64_t index_most_bytes = 0;  // that the index may grow to
  uint64_t history_bytes = 0;     // of past answers
  uint64_t in_flight_bytes = 0;   // pieces on their way in and out, announced tokens
  uint64_t ssd_bytes = 0;         // segment buffers, block cache, table readers
};

inline constexpr uint64_t kMinRamBudget = uint64_t{32} << 20;

// InvalidArgument below kMinRamBudget.
absl::StatusOr<BudgetShares> CutBudget(uint64_t ram_budget_bytes, bool has_ssd, bool shared_arena);

// The same for another budget while the cache is open: what is of fixed size stays as it was cut,
// the arena takes up the difference. InvalidArgument when too little is left for it.
absl::StatusOr<BudgetShares> Recut(uint64_t ram_budget_bytes, const BudgetShares& opened);

}  // namespace prefixd::ram
