// Stats: every byte and every token accounted for.
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
        .handle = space->handle, .id = space->id, .identity = space->identity};
    core_->index->Summarize(&summary);
    summaries.push_back(std::move(summary));
  }
  return summaries;
}

block::Stats Cache::GetStats() const {
  block::Stats stats;
  stats.epoch = core_->epoch;
  stats.version = core_->options.version;
  stats.uptime_s =
      static_cast<double>(core_->options.clock->MonotonicMicros() - core_->started_us) * 1e-6;
  stats.ram_budget_bytes = core_->options.ram_budget_bytes;
  const ram::ArenaStats arena = core_->arena->stats();
  const index::IndexCounts counts = core_->index->Counts();
  stats.ram_parts = {{"arena", arena.slabs_in_use * arena.slab_bytes},
                     {"index", counts.memory_bytes},
                     {"in_flight", core_->in_flight_bytes.load()}};
  if (core_->store != nullptr) {
    stats.ram_parts.push_back({"ssd", core_->store->MemoryBytes()});
    stats.ssd_budget_bytes = core_->options.ssd_budget_bytes;
    stats.ssd_file_bytes = core_->store->FileBytes();
  }
  stats.dirty_bytes = counts.dirty_bytes;
  {
    base::MutexLock lock(core_->mutex);
    stats.sessions = core_->sessions.size();
  }
  stats.leases = counts.leases;
  stats.leased_bytes = counts.leased_bytes;
  stats.reservations = counts.reservations;
  core_->counters.Export(&stats);
  stats.counters.push_back({"arena.extent_bytes", arena.extent_bytes});
  stats.counters.push_back({"index.ghosts", counts.ghosts});
  if (core_->store != nullptr)
    stats.counters.push_back({"ssd.failing", core_->ssd_failing.load() ? 1u : 0u});
  stats.spaces = ListSpaces();
  return stats;
}

}  // namespace prefixd::cache
