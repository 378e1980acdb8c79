#include "index/prefix_index.h"

#include <utility>

#include "base/random.h"
#include "index/impl.h"

namespace prefixd::index {

PrefixIndex::PrefixIndex(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
PrefixIndex::~PrefixIndex() = default;

block::SpaceHandle PrefixIndex::AddSpace(const SpaceShape& shape) {
  const base::MutexLock lock(impl_->mutex);
  const auto known = impl_->spaces_by_id.find(shape.id);
  if (known != impl_->spaces_by_id.end()) return known->second->handle;
  block::SpaceHandle handle;
  do {
    handle = block::SpaceHandle{base::RandomWord()};
  } while (impl_->spaces.contains(handle));
  std::unique_ptr<Space>& place = impl_->spaces[handle];
  place = std::make_unique<Space>(shape, handle, &impl_->options.hasher, &impl_->comparisons,
                                  &impl_->nodes);
  Space& space = *place;
  impl_->spaces_by_id[shape.id] = &space;
  impl_->spaces_bytes += space.memory_bytes;
  space.root.in_tree = true;
  space.root.hash = block::RootHash(shape.id);
  return handle;
}

bool PrefixIndex::IsEmpty(block::SpaceHandle handle) const {
  const base::MutexLock lock(impl_->mutex);
  const Space* const space = impl_->FindSpace(handle);
  return space != nullptr && impl_->IsEmpty(*space);
}

bool PrefixIndex::ForgetSpace(block::SpaceHandle handle) {
  const base::MutexLock lock(impl_->mutex);
  Space* const space = impl_->FindSpace(handle);
  if (space == nullptr || !impl_->IsEmpty(*space)) return false;
  if (space->limits != block::SpaceLimits{}) return false;
  impl_->nodes.ForgetSpace(space);
  impl_->spaces_bytes -= space->memory_bytes;
  impl_->spaces_by_id.erase(space->shape.id);
  impl_->spaces.erase(handle);
  return true;
}

void PrefixIndex::SetSpaceLimits(block::SpaceHandle handle, const block::SpaceLimits& limits) {
  const base::MutexLock lock(impl_->mutex);
  if (Space* const space = impl_->FindSpace(handle)) {
    space->limits = limits;
    impl_->eviction->LimitsChanged(*space);
  }
}

void PrefixIndex::SetLimits(const Limits& limits) {
  const base::MutexLock lock(impl_->mutex);
  impl_->limits = limits;
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
  if (!impl_->any_freed.load(std::memory_order_relaxed)) return {};
  const base::MutexLock lock(impl_->mutex);
  impl_->any_freed.store(false, std::memory_order_relaxed);
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
  counts.spared_bytes = std::min(impl_->totals.read_again_extents, impl_->limits.most_spared_bytes);
  counts.memory_bytes = impl_->MemoryBytes();
  counts.table_bytes = impl_->table_bytes;
  counts.spaces = impl_->spaces.size();
  counts.ends = impl_->totals.ends;
  counts.ram_payload_bytes = impl_->totals.ram_payload;
  counts.snapshot_bytes = impl_->totals.snapshot_extents;
  counts.evicted_snapshots = impl_->evicted_snapshots;
  counts.refused_snapshots = impl_->refused_snapshots;
  counts.ghosts = impl_->ghosts.size();
  counts.longest_hold = impl_->longest_hold.longest();
  counts.stamp = impl_->next_stamp - 1;
  counts.comparisons = impl_->comparisons;
  impl_->NoteMemory();
  return counts;
}

MemoryCounts PrefixIndex::MemorySeen() const {
  return {.memory_bytes = impl_->memory_seen.load(std::memory_order_relaxed),
          .table_bytes = impl_->tables_seen.load(std::memory_order_relaxed)};
}

block::BlockAges PrefixIndex::CountedAges() const {
  const base::MutexLock lock(impl_->mutex);
  return impl_->ages.counted();
}

absl::Status PrefixIndex::Validate() const {
  const base::MutexLock lock(impl_->mutex);
  return impl_->Validate();
}

}  // namespace prefixd::index
