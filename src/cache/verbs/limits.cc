// Limits of spaces, and budgets that change while the cache is open.
#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/status.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {

absl::StatusOr<bool> SetSpaceLimits(Context& context, Tables& tables, Room& room,
                                    const block::SpaceId& id, const block::SpaceLimits& limits) {
  const SpacePtr space = tables.spaces.Find(id);
  if (space == nullptr) {
    return absl::NotFoundError(absl::StrCat("limits: no space ", base::ToHex(id)));
  }
  constexpr uint64_t kCenturyMs = uint64_t{100} * 365 * 24 * 3600 * 1000;
  if (limits.ttl_ms > kCenturyMs) {
    return absl::InvalidArgumentError(
        absl::StrCat("limits: ttl ", limits.ttl_ms, " ms, a hundred years at most"));
  }
  const LimitedSpaces::Floors others = tables.limited.FloorsBut(space->handle);
  PREFIXD_RETURN_IF_ERROR(CheckFloor({.tier = "RAM",
                                      .floor_bytes = limits.ram_floor_bytes,
                                      .ceiling_bytes = limits.ram_ceiling_bytes,
                                      .others_bytes = others.ram_bytes,
                                      .tier_bytes = context.arena->stats().capacity_bytes}));
  PREFIXD_RETURN_IF_ERROR(CheckFloor({.tier = "SSD",
                                      .floor_bytes = limits.ssd_floor_bytes,
                                      .ceiling_bytes = limits.ssd_ceiling_bytes,
                                      .others_bytes = others.ssd_bytes,
                                      .tier_bytes = context.ssd_budget_bytes}));
  if (context.store != nullptr) {
    PREFIXD_RETURN_IF_ERROR(tables.spaces.Save(*space));
    PREFIXD_RETURN_IF_ERROR(
        context.store->PutMeta(kLimitsKey + base::ToHex(id), EncodeLimits(limits)));
  }
  context.index->SetSpaceLimits(space->handle, limits);
  tables.limited.Set(space->handle, limits, context.Now(), context.index->Counts().stamp);
  room.KeepLimits();
  return context.store != nullptr;
}

absl::Status SetBudgets(Room& room, Segments& segments, uint64_t ram_bytes, uint64_t ssd_bytes) {
  // Both or neither.
  if (ssd_bytes > 0) PREFIXD_RETURN_IF_ERROR(segments.CheckBudget(ssd_bytes));
  if (ram_bytes > 0) PREFIXD_RETURN_IF_ERROR(room.Resize(ram_bytes));
  return ssd_bytes > 0 ? segments.Resize(ssd_bytes) : absl::OkStatus();
}

}  // namespace prefixd::cache::verbs
