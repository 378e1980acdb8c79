// Stats: every byte and every token accounted for.
#include <algorithm>

#include "cache/core.h"

namespace prefixd::cache {

std::vector<block::SpaceSummary> Cache::ListSpaces() const {
  std::vector<SpacePtr> spaces;
  {
    base::MutexLock lock(core_->mutex);
    for (const auto& [id, space] : core_->spaces_by_id) spaces.push_back(space);
  }
  std::vector<block::SpaceSummary> summaries;
  for (const SpacePtr& space : spaces) {
    block::SpaceSummary summary{
        .handle = space->handle, .id = space->id, .identity = space->identity, .limits = {}};
    core_->index->Summarize(&summary);
    summaries.push_back(std::move(summary));
  }
  return summaries;
}

namespace {

std::vector<block::NamedCount> RamParts(const Core& core) {
  const ram::ArenaStats arena = core.arena->stats();
  // A shared arena's slabs have memory from when they enter service, a private one's when they are
  // used.
  const uint64_t slabs = core.arena->shared() ? arena.slabs_in_service : arena.slabs_in_use;
  std::vector<block::NamedCount> parts = {
      {"arena", slabs * arena.slab_bytes},
      {"arena tables", arena.table_bytes},
      {"index", core.index->Counts().memory_bytes},
      {"in_flight", core.in_flight_bytes.load() + core.announced_bytes.load()},
      {"history", core.history->MemoryBytes()},
      {"staging", core.staging == nullptr ? 0 : core.staging->granted_bytes()}};
  if (core.store != nullptr) parts.push_back({"ssd", core.store->MemoryBytes()});
  return parts;
}

}  // namespace

block::Stats Cache::GetStats() const {
  block::Stats stats;
  stats.epoch = core_->epoch;
  stats.version = core_->options.version;
  stats.uptime_s = static_cast<double>(core_->Now() - core_->started_us) * 1e-6;
  stats.ram_budget_bytes = core_->ram_budget_bytes;
  stats.ram_parts = RamParts(*core_);
  if (core_->options.ssd_budget_bytes > 0) stats.ssd_budget_bytes = core_->SsdBudget();
  if (core_->store != nullptr) stats.ssd_file_bytes = core_->store->FileBytes();
  core_->ExpirePins();
  core_->KeepLimits();
  const index::IndexCounts counts = core_->index->Counts();
  stats.pins = counts.pins;
  stats.pinned_bytes = counts.pinned_bytes;
  stats.snapshot_bytes = counts.snapshot_bytes;
  stats.snapshot_share_bytes = core_->SnapshotShare(core_->arena->stats().capacity_bytes);
  stats.dirty_bytes = counts.dirty_bytes;
  stats.leases = counts.leases;
  stats.leased_bytes = counts.leased_bytes;
  stats.reservations = counts.reservations;
  uint64_t cut_off = 0, refused = 0, kept_staging = 0;
  {
    base::MutexLock lock(core_->mutex);
    for (const Core::KeptStaging& kept : core_->kept_staging) kept_staging += kept.staging->bytes();
    for (const auto& [id, session] : core_->sessions) {
      ++(session->attached ? stats.sessions : cut_off);
      if (session->attached) refused += session->not_shared.size();
    }
  }
  core_->counters.Export(&stats);
  core_->ExportAdvice(&stats);
  const ram::ArenaStats arena = core_->arena->stats();
  stats.counters.push_back({"arena.extent_bytes", arena.extent_bytes});
  stats.counters.push_back({"arena.shared", core_->arena->shared() ? 1u : 0u});
  stats.counters.push_back({"arena.held_by_another", core_->arena_held ? 1u : 0u});
  stats.counters.push_back({"arena.slabs_in_service", arena.slabs_in_service});
  stats.counters.push_back({"index.ghosts", counts.ghosts});
  const auto micros = [](std::chrono::nanoseconds held) {
    return static_cast<uint64_t>(held.count() / 1000);
  };
  stats.counters.push_back({"longest_hold_us.index", micros(counts.longest_hold)});
  stats.counters.push_back({"longest_hold_us.cache", micros(core_->longest_hold.longest())});
  stats.counters.push_back({"longest_hold_us.arena", micros(arena.longest_hold)});
  stats.counters.push_back({"puts.arriving_bytes", core_->arriving_bytes.load()});
  stats.counters.push_back(
      {"reservations.announced_tokens", core_->announced_bytes.load() / sizeof(block::Token)});
  stats.counters.push_back({"snapshots.evicted", counts.evicted_snapshots});
  stats.counters.push_back({"snapshots.refused", counts.refused_snapshots});
  stats.counters.push_back({"sessions.kept", cut_off});
  stats.counters.push_back({"staging.kept_bytes", kept_staging});
  stats.counters.push_back({"spaces.refused", refused});
  if (core_->options.ssd_budget_bytes > 0) {
    stats.counters.push_back({"ssd.closed", core_->store == nullptr ? 1u : 0u});
    stats.counters.push_back({"ssd.border_waits", core_->border_waits.load() ? 1u : 0u});
  }
  if (core_->store != nullptr) {
    const ssd::SegmentStore::Kept damaged = core_->store->DamagedCopies();
    stats.counters.push_back({"ssd.damaged_copies", damaged.count});
    stats.counters.push_back({"ssd.damaged_bytes", damaged.bytes});
  }
  if (core_->store != nullptr)
    stats.counters.push_back({"longest_hold_us.ssd", micros(core_->store->longest_hold())});
  if (core_->store != nullptr)
    stats.counters.push_back({"ssd.failing", core_->ssd_failing.load() ? 1u : 0u});
  if (core_->store != nullptr && core_->options.ssd_write_share > 0)
    stats.counters.push_back({"ssd.may_write_bytes", core_->may_write_bytes.load()});
  stats.spaces = ListSpaces();
  if (core_->store != nullptr) {  // cleared, superseded or forgotten: there until it ages out
    uint64_t live = 0;
    for (const block::SpaceSummary& space : stats.spaces) live += space.ssd_page_bytes;
    stats.counters.push_back(
        {"ssd.waiting_bytes", stats.ssd_file_bytes - std::min(stats.ssd_file_bytes, live)});
  }
  return stats;
}

Cache::Holdings Cache::GetHoldings() const {
  const index::IndexCounts counts = core_->index->Counts();
  return {.entries = counts.ends, .ram_payload_bytes = counts.ram_payload_bytes};
}

std::vector<block::SessionInfo> Cache::ListSessions() const {
  std::vector<block::SessionInfo> list;
  absl::flat_hash_map<block::SessionName, uint64_t> bytes;
  for (const block::LeaseInfo& lease : ListLeases()) bytes[lease.holder] += lease.bytes;
  base::MutexLock lock(core_->mutex);
  for (const auto& [id, session] : core_->sessions) {
    const block::SessionName name = NameOf(id);
    list.push_back({.session = name,
                    .worker = session->worker,
                    .slot = session->slot_number(),
                    .pid = session->pid(),
                    .attached = session->attached,
                    .age_s = static_cast<double>(core_->Now() - session->begun_us) * 1e-6,
                    .leases = session->leases.size(),
                    .leased_bytes = bytes[name],
                    .reservations = session->reservations.size(),
                    .staging_bytes = session->staging == nullptr ? 0 : session->staging->bytes()});
    for (const auto& [model, note] : session->not_shared)
      list.back().not_shared.push_back({.model = model, .reason = note.reason()});
  }
  std::ranges::sort(list, {}, [](const block::SessionInfo& info) { return -info.age_s; });
  return list;
}

std::vector<block::LeaseInfo> Cache::ListLeases() const {
  absl::flat_hash_map<block::LeaseId, block::LeaseInfo> in_index;
  for (const block::LeaseInfo& info : core_->index->ListLeases()) in_index[info.lease] = info;
  std::vector<block::LeaseInfo> list;
  base::MutexLock lock(core_->mutex);
  for (const auto& [id, held] : core_->leases) {
    block::LeaseInfo info{.lease = id, .session = {}, .holder = NameOf(held.session->id)};
    info.age_s = static_cast<double>(core_->Now() - held.lease->begun_us) * 1e-6;
    held.lease->AddTo(in_index, &info);
    list.push_back(info);
  }
  std::ranges::sort(list, {}, [](const block::LeaseInfo& info) { return -info.age_s; });
  return list;
}

}  // namespace prefixd::cache
