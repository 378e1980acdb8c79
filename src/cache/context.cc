#include "cache/context.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/random.h"
#include "base/status.h"
#include "ram/slot_locks.h"

namespace prefixd::cache {

Context::Context(const Options& opts)
    : options(opts),
      epoch(base::RandomWord()),
      lease_base(epoch >> 2 & ~((uint64_t{1} << 40) - 1)),
      started_us(opts.clock->MonotonicMicros()),
      ram_budget_bytes(opts.ram_budget_bytes),
      ssd_budget_bytes(opts.ssd_budget_bytes) {}

base::LockWait Context::LockWait() {
  return {.limit = options.lock_wait, .say = [this](const std::string& line) {
            counters.Add("locks.waited");
            Log(LogLevel::kWarning, line);
          }};
}

HashKeyPlaces Context::KeyPlaces() const {
  HashKeyPlaces places;
  if (has_ssd()) places.store = options.directory + "/prefixd.key";
  if (!options.arena_path.empty()) places.arena = options.arena_path + ".key";
  return places;
}

void Context::FreeTaken() {
  for (block::Extent extent : index->TakeFreed()) arena->Free(extent);
}

void Context::CountEvicted(const index::Evicted& evicted) {
  if (evicted.pages == 0) return;
  counters.AddAll({{"pages.evicted", evicted.pages}, {"bytes.evicted", evicted.bytes}});
  if (evicted.dropped_pages > 0) counters.Add("pages.dropped", evicted.dropped_pages);
}

ram::BudgetShares Context::SharesNow() const {
  const uint64_t budget = ram_budget_bytes, index = index_share_bytes;
  ram::BudgetShares now =
      budget == options.ram_budget_bytes ? shares : ram::Recut(budget, shares).value_or(shares);
  const uint64_t grown = index - std::min(index, now.index_bytes);
  now.index_bytes += grown;
  now.arena_bytes -= grown;
  return now;
}

absl::Status Context::OpenArena() {
  if (!options.arena_path.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(shares, ram::CutBudget(options.ram_budget_bytes, has_ssd(), true));
    auto opened = ram::Arena::Open({.capacity_bytes = shares.arena_bytes,
                                    .path = options.arena_path,
                                    .epoch = epoch,
                                    .lock_wait = LockWait(),
                                    .key_id = IdOf(hash_key),
                                    .unpin_within = options.unpin_within});
    if (opened.ok()) {
      // Without the key the next start replaces this file; nothing else is lost.
      if (absl::Status kept = KeepHashKey(KeyPlaces().arena, hash_key); !kept.ok()) {
        counters.Add("arena.key_not_kept");
        Log(LogLevel::kWarning,
            absl::StrCat("pages in RAM will not survive a crash: ", std::string(kept.message())));
      }
      arena = *std::move(opened);
      slots = std::make_unique<ram::Slots>(arena.get());
      staging = std::make_unique<ram::StagingPool>(shares.staging_bytes,
                                                   ram::SlotLocks::FolderOf(options.arena_path));
      if (!arena->replaced_why().empty()) {
        counters.Add("arena.replaced");
        Log(LogLevel::kWarning, "the arena that was there is replaced: " + arena->replaced_why());
      }
      if (!arena->not_spread_why().empty()) {
        Log(LogLevel::kWarning,
            "the arena's memory is not spread over the NUMA nodes, so workers on some of them read "
            "slower: " +
                arena->not_spread_why());
      }
      return absl::OkStatus();
    }
    counters.Add("arena.unusable");
    arena_held = absl::IsUnavailable(opened.status());
    Log(LogLevel::kWarning, absl::StrCat("no shared arena, pages travel by copy: ",
                                         std::string(opened.status().message())));
  }
  PREFIXD_ASSIGN_OR_RETURN(shares, ram::CutBudget(options.ram_budget_bytes, has_ssd(), false));
  PREFIXD_ASSIGN_OR_RETURN(arena, ram::Arena::Open({.capacity_bytes = shares.arena_bytes}));
  return absl::OkStatus();
}

// A quarter for what was read again hits as much as plain LRU, or more, on every trace of
// tests/data/traces at every size; a half loses up to 0.9 points (src/DECISIONS.md).
index::PrefixIndex::Limits Context::IndexLimits(uint64_t index_bytes) const {
  const uint64_t arena_bytes = arena->stats().capacity_bytes;
  return {.session_lease_bytes = arena_bytes / 2,
          .total_lease_bytes = arena_bytes / 10 * 8,
          .memory_limit_bytes = index_bytes,
          .snapshot_bytes = SnapshotShare(arena_bytes),
          .most_spared_bytes = arena_bytes / 4};
}

absl::Status Context::Open() {
  PREFIXD_ASSIGN_OR_RETURN(hash_key, FindHashKey(KeyPlaces(), [this](const std::string& why) {
                             Log(LogLevel::kWarning, why);
                           }));
  hasher = block::BlockHasher(hash_key, options.hash_bits);
  PREFIXD_RETURN_IF_ERROR(OpenArena());
  index_share_bytes = index_least_bytes = shares.index_bytes;
  index_most_bytes = shares.index_most_bytes;
  in_flight_share_bytes = shares.in_flight_bytes;
  index = std::make_unique<index::PrefixIndex>(index::PrefixIndex::Options{
      .limits = IndexLimits(shares.index_bytes),
      // An eighth of what the index may have, at about 64 bytes each.
      .max_ghosts = static_cast<uint32_t>(std::min<uint64_t>(65536, shares.index_most_bytes / 512)),
      .max_events = options.max_events,
      .hasher = hasher,
      .clock = options.clock});
  return absl::OkStatus();
}

}  // namespace prefixd::cache
