#include "index/prefix_index.h"

#include <utility>

#include "index/impl.h"

namespace prefixd::index {

PrefixIndex::PrefixIndex(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
PrefixIndex::~PrefixIndex() = default;

uint64_t PrefixIndex::PathOf(uint64_t parent, const block::SequenceView& tokens) {
  return Impl::PathOf(parent, tokens);
}

block::SpaceHandle PrefixIndex::AddSpace(const SpaceShape& shape) {
  const base::MutexLock lock(impl_->mutex);
  for (const auto& space : impl_->spaces) {
    if (space->shape.id == shape.id) return space->handle;
  }
  const block::SpaceHandle handle{impl_->spaces.size() + 1};
  impl_->spaces.push_back(
      std::make_unique<Space>(shape, handle, &impl_->comparisons, &impl_->nodes));
  Space& space = *impl_->spaces.back();
  space.root.in_tree = true;
  space.root.hash = block::RootHash(shape.id);
  return handle;
}

void PrefixIndex::SetSpaceLimits(block::SpaceHandle handle, const block::SpaceLimits& limits) {
  const base::MutexLock lock(impl_->mutex);
  if (Space* const space = impl_->FindSpace(handle)) space->limits = limits;
}

void PrefixIndex::SetLimits(uint64_t session_lease_bytes, uint64_t total_lease_bytes,
                            uint64_t memory_limit_bytes, uint64_t snapshot_bytes) {
  const base::MutexLock lock(impl_->mutex);
  impl_->limits = {session_lease_bytes, total_lease_bytes, memory_limit_bytes, snapshot_bytes};
  impl_->MakeSnapshotRoom(0);
}

void PrefixIndex::Summarize(block::SpaceSummary* summary) const {
  const base::MutexLock lock(impl_->mutex);
  const Space* const space = impl_->FindSpace(summary->handle);
  if (space == nullptr) return;
  const Totals& totals = space->totals;
  summary->blocks = totals.blocks;
  summary->holes = totals.holes;
  summary->ends = totals.ends;
  summary->stored_tokens = totals.stored_tokens;
  summary->ram_payload_bytes = totals.ram_payload;
  summary->ram_extent_bytes = totals.ram_extents;
  summary->ssd_payload_bytes = totals.ssd_payload;
  summary->ssd_page_bytes = totals.ssd_pages;
  summary->dirty_bytes = totals.dirty_bytes;
  summary->limits = space->limits;
}

std::vector<block::Extent> PrefixIndex::TakeFreed() {
  const base::MutexLock lock(impl_->mutex);
  return std::exchange(impl_->freed, {});
}

IndexCounts PrefixIndex::Counts() const {
  const base::MutexLock lock(impl_->mutex);
  IndexCounts counts;
  counts.leases = impl_->leases.size();
  counts.reservations = impl_->reservations.size();
  counts.leased_bytes = impl_->totals.leased_bytes;
  counts.pins = impl_->pins.size();
  counts.pinned_bytes = impl_->totals.pinned_bytes;
  counts.kept_bytes = impl_->totals.kept_bytes;
  counts.dirty_bytes = impl_->totals.dirty_bytes;
  counts.clean_bytes = impl_->totals.clean_bytes;
  counts.memory_bytes = impl_->MemoryBytes();
  counts.snapshot_bytes = impl_->totals.snapshot_extents;
  counts.evicted_snapshots = impl_->evicted_snapshots;
  counts.refused_snapshots = impl_->refused_snapshots;
  counts.ghosts = impl_->ghosts.size();
  counts.stamp = impl_->next_stamp - 1;
  counts.comparisons = impl_->comparisons;
  return counts;
}

absl::Status PrefixIndex::Validate() const {
  const base::MutexLock lock(impl_->mutex);
  return impl_->Validate();
}

}  // namespace prefixd::index
