#include "cache/room/spill_demand.h"

#include <algorithm>

namespace prefixd::cache {

bool SpillDemand::CleanBelow(uint64_t eighths) const {
  const ram::ArenaStats stats = context_->arena->stats();
  const index::IndexCounts counts = context_->index->Counts();
  const uint64_t free_bytes = stats.slabs_free * stats.slab_bytes;
  if (counts.dirty_bytes == 0) return false;
  const bool index_fills = counts.memory_bytes > context_->index_most_bytes / 4 * 3;
  // What is spared does not go for new blocks.
  const uint64_t may_go = counts.clean_bytes - std::min(counts.clean_bytes, counts.spared_bytes);
  return free_bytes + may_go < stats.capacity_bytes / 8 * eighths ||
         (index_fills &&
          counts.clean_bytes < (counts.clean_bytes + counts.dirty_bytes) / 8 * eighths);
}

SpillDemand::Rounds SpillDemand::rounds() const {
  base::MutexLock lock(mutex_);
  return rounds_;
}

SpillDemand::Rounds SpillDemand::WaitBeyond(const Rounds& seen, base::Deadline until) {
  base::MutexLock lock(mutex_);
  while (rounds_.ended == seen.ended && !stopped_ && ended_.WaitUntil(mutex_, until)) {
  }
  return rounds_;
}

void SpillDemand::RoundEnded(bool vain) {
  {
    base::MutexLock lock(mutex_);
    ++rounds_.ended;
    rounds_.vain += vain;
  }
  ended_.NotifyAll();
}

void SpillDemand::Stop() {
  wanted_.Stop();
  {
    base::MutexLock lock(mutex_);
    stopped_ = true;
  }
  ended_.NotifyAll();
}

}  // namespace prefixd::cache
