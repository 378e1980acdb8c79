// Stats: every byte and every token accounted for.
#include <algorithm>
#include <utility>

#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

std::vector<block::NamedCount> RamParts(const Context& context, const Tables& tables,
                                        const Far& far, const Writer& writer) {
  const ram::ArenaStats arena = context.arena->stats();
  // A shared arena's slabs have memory from when they enter service, a private one's when they are
  // used.
  const uint64_t slabs = context.arena->shared() ? arena.slabs_in_service : arena.slabs_in_use;
  const uint64_t awaited_bytes = context.arena->device_pins().awaited_bytes;
  std::vector<block::NamedCount> parts = {
      {"arena", slabs * arena.slab_bytes + awaited_bytes},
      {"arena tables", arena.table_bytes},
      {"index", context.index->Counts().memory_bytes},
      {"in_flight", context.in_flight_bytes.load() + tables.sessions.announced_bytes()},
      {"history", tables.history.MemoryBytes()},
      {"staging", context.staging == nullptr ? 0 : context.staging->granted_bytes()}};
  if (context.store != nullptr) parts.push_back({"ssd", context.store->MemoryBytes()});
  if (far.on()) parts.push_back({"remote", far.MemoryBytes() + writer.MemoryBytes()});
  return parts;
}

uint64_t Micros(std::chrono::nanoseconds held) {
  return static_cast<uint64_t>(held.count() / 1000);
}

void AddPhases(const AcquirePhases& phases, block::Stats* stats) {
  const std::pair<const char*, const TimesGauge*> all[] = {{"acquire.match", &phases.match},
                                                           {"acquire.remote", &phases.remote},
                                                           {"acquire.room", &phases.room},
                                                           {"acquire.wait", &phases.wait}};
  for (const auto& [name, times] : all) {
    block::LatencyHistogram histogram = times->Get();
    if (histogram.count > 0) stats->latencies.push_back({name, histogram});
  }
}

void AddIndex(const Context& context, block::Stats* stats) {
  const index::IndexCounts counts = context.index->Counts();
  stats->ages = context.index->CountedAges();
  stats->pins = counts.pins;
  stats->pinned_bytes = counts.pinned_bytes;
  stats->snapshot_bytes = counts.snapshot_bytes;
  stats->snapshot_share_bytes = context.SnapshotShare(context.arena->stats().capacity_bytes);
  stats->dirty_bytes = counts.dirty_bytes;
  stats->leases = counts.leases;
  stats->leased_bytes = counts.leased_bytes;
  stats->reservations = counts.reservations;
  stats->counters.push_back({"index.ghosts", counts.ghosts});
  stats->counters.push_back({"longest_hold_us.index", Micros(counts.longest_hold)});
  stats->counters.push_back({"snapshots.evicted", counts.evicted_snapshots});
  stats->counters.push_back({"snapshots.refused", counts.refused_snapshots});
}

void AddArena(const Context& context, block::Stats* stats) {
  const ram::ArenaStats arena = context.arena->stats();
  stats->counters.push_back({"arena.extent_bytes", arena.extent_bytes});
  stats->counters.push_back({"arena.shared", context.arena->shared() ? 1u : 0u});
  stats->counters.push_back({"arena.held_by_another", context.arena_held ? 1u : 0u});
  stats->counters.push_back({"arena.slabs_in_service", arena.slabs_in_service});
  const ram::DevicePins pins = context.arena->device_pins();
  stats->counters.push_back({"arena.device_pinned_bytes", pins.bytes});
  stats->counters.push_back({"arena.device_awaited_bytes", pins.awaited_bytes});
  stats->counters.push_back({"arena.device_kept_bytes", pins.kept_bytes});
  stats->counters.push_back({"longest_hold_us.arena", Micros(arena.longest_hold)});
}

void AddTables(const Context& context, const Tables& tables, block::Stats* stats) {
  const Sessions::Counts sessions = tables.sessions.Count();
  stats->sessions = sessions.attached;
  stats->counters.push_back({"longest_hold_us.cache", Micros(context.longest_hold.longest())});
  stats->counters.push_back({"puts.arriving_bytes", tables.sessions.arriving_bytes()});
  stats->counters.push_back(
      {"reservations.announced_tokens", tables.sessions.announced_bytes() / sizeof(block::Token)});
  stats->counters.push_back({"sessions.kept", sessions.cut_off});
  stats->counters.push_back({"staging.kept_bytes", sessions.kept_staging_bytes});
  stats->counters.push_back({"spaces.refused", sessions.not_shared});
  const FormatAdvice::State advice = tables.advice.state();
  stats->counters.push_back({"advice.coarser", advice.full || advice.missing ? 1u : 0u});
  stats->counters.push_back({"advice.missed_permille", advice.missed_permille});
  stats->counters.push_back({"advice.times", advice.times});
}

void AddSsd(const Context& context, const Segments& segments, const Tier& tier,
            block::Stats* stats) {
  if (context.has_ssd()) {
    stats->ssd_budget_bytes = context.ssd_budget_bytes;
    stats->counters.push_back({"ssd.closed", context.store == nullptr ? 1u : 0u});
    stats->counters.push_back({"ssd.border_waits", tier.border_waits() ? 1u : 0u});
  }
  if (context.store == nullptr) return;
  stats->ssd_file_bytes = context.store->FileBytes();
  const ssd::SegmentStore::Kept damaged = context.store->DamagedCopies();
  stats->counters.push_back({"ssd.damaged_copies", damaged.count});
  stats->counters.push_back({"ssd.damaged_bytes", damaged.bytes});
  stats->counters.push_back({"longest_hold_us.ssd", Micros(context.store->longest_hold())});
  stats->counters.push_back({"ssd.failing", context.ssd_failing.load() ? 1u : 0u});
  if (context.options.ssd_write_share > 0) {
    stats->counters.push_back({"ssd.may_write_bytes", segments.may_write_bytes()});
  }
  uint64_t live = 0;  // the rest was cleared, superseded or forgotten: there until it ages out
  for (const block::SpaceSummary& space : stats->spaces) live += space.ssd_page_bytes;
  stats->counters.push_back(
      {"ssd.waiting_bytes", stats->ssd_file_bytes - std::min(stats->ssd_file_bytes, live)});
}

double SecondsBetween(int64_t from_us, int64_t to_us) {
  return static_cast<double>(std::max<int64_t>(0, to_us - from_us)) * 1e-6;
}

void AddRemote(const Context& context, const Far& far, block::Stats* stats) {
  if (!far.on()) return;
  remote::RemoteStatus status = far.store().Status();
  block::RemoteStats& remote = stats->remote;
  remote.on = true;
  remote.known = status.known;
  remote.cluster = status.cluster;
  remote.tls = status.tls;
  remote.sealed = far.options().seal == remote::Seal::kAes256Gcm;
  remote.warnings = std::move(status.warnings);
  const int64_t now = context.Now();
  for (remote::NodeStatus& node : status.nodes) {
    remote.servers.push_back({.address = std::move(node.address),
                              .open = node.open,
                              .why = std::move(node.why),
                              .failed_s = SecondsBetween(node.failed_us, now),
                              .next_try_s = SecondsBetween(now, node.next_try_us),
                              .in_flight_bytes = node.in_flight_bytes});
  }
}

}  // namespace

block::Stats GetStats(Context& context, Tables& tables, Room& room, const Segments& segments,
                      const Tier& tier, const Far& far, const Writer& writer) {
  tables.pins.Expire();
  room.KeepLimits();
  block::Stats stats;
  stats.epoch = context.epoch;
  stats.version = context.options.version;
  stats.uptime_s = static_cast<double>(context.Now() - context.started_us) * 1e-6;
  stats.ram_budget_bytes = context.ram_budget_bytes;
  stats.ram_parts = RamParts(context, tables, far, writer);
  stats.spaces = tables.spaces.List();
  AddPhases(context.phases, &stats);
  context.counters.Export(&stats);
  AddTables(context, tables, &stats);
  AddIndex(context, &stats);
  AddArena(context, &stats);
  AddSsd(context, segments, tier, &stats);
  AddRemote(context, far, &stats);
  return stats;
}

}  // namespace prefixd::cache::verbs
