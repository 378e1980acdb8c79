// Purge: a clear that leaves nothing behind, segment by segment.
#include <algorithm>
#include <limits>

#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"
#include "cache/record.h"

namespace prefixd::cache {
namespace {

// Cursors: sequences of the SSD tier with this bit.
constexpr uint64_t kOnSsd = uint64_t{1} << 63;

}  // namespace

void Core::Scrub(Cache::PurgeProgress* progress) {
  FreeTaken();
  const index::PrefixIndex::Places places = index->ListPlaces();
  arena->Scrub(places.extents);
  all_backed = false;
  slab_bell.Ring();
  progress->leased_bytes = places.detached_bytes;
}

// By its records, which stand in the segment of their pages. One that cannot be read may be
// anybody's.
absl::StatusOr<bool> Core::HoldsCleared(const ssd::SegmentInfo& segment,
                                        const block::SpaceId* space) {
  const ssd::ClearedBorders borders = store->Borders();
  bool holds = false;
  uint64_t unreadable = 0;
  const auto look = [&](uint64_t sequence, std::span<const std::byte> bytes) {
    const absl::StatusOr<BlockRecord> record = DecodeRecord(bytes);
    if (!record.ok()) {
      ++unreadable;
      return absl::OkStatus();
    }
    if (space != nullptr && record->space != *space) return absl::OkStatus();
    holds = holds || borders.Cover(record->space, sequence);
    return absl::OkStatus();
  };
  uint64_t unread = 0;
  const absl::Status read = store->ForEachRecordOf(segment, look, &unread);
  return holds || !read.ok() || unreadable + unread > 0;
}

// Nobody can tell what is in them.
absl::Status Core::PurgeDamaged(Cache::PurgeProgress* progress) {
  progress->removed_bytes += store->DamagedCopies().bytes;
  while (RemoveDamaged()) {
  }
  const ssd::SegmentStore::Kept left = store->DamagedCopies();
  if (left.count == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("purge: ", left.count, " damaged stores of ",
                                             base::FormatBytes(left.bytes), " cannot be removed"));
}

absl::Status Core::PurgeSegment(const ssd::SegmentInfo& segment, Cache::PurgeProgress* progress) {
  const auto same = [&](const ssd::SegmentInfo& other) {
    return other.first_sequence == segment.first_sequence;
  };
  {
    base::MutexLock lock(segment_mutex);
    if (std::ranges::none_of(StayingSegments(), same)) return absl::OkStatus();  // it has left
    Batch batch;
    batch.leaving.segments = {segment};
    batch.leaving.blocks = index->PickRewrite({.first = segment.first_sequence,
                                               .last = segment.last_sequence,
                                               .hot_after = std::numeric_limits<int64_t>::min(),
                                               .hot_bytes = std::numeric_limits<uint64_t>::max(),
                                               .warm_after = std::numeric_limits<int64_t>::max()});
    batch.leaving.bytes = PageBytesOf(batch.leaving.blocks);
    batch.blocks = batch.leaving.blocks;
    batch.first = batch.blocks.size();
    if (batch.blocks.empty()) {
      Leave(segment);
    } else if (MakeSsdRoom(0, 0, &batch.leaving) != SsdRoom::kNone &&
               !batch.leaving.segments.empty()) {
      PREFIXD_ASSIGN_OR_RETURN(const SegmentSums sums, WriteBatch(std::move(batch)));
      progress->rewritten_bytes += sums.rewritten_bytes;
    }
  }
  for (;;) {
    const uint64_t seen = DropsEnded();
    if (std::ranges::none_of(store->Segments(), same)) break;
    if (WaitForDrop(seen)) continue;
    return absl::UnavailableError(
        absl::StrCat("purge: the files of segment ", segment.first_sequence, ", ",
                     base::FormatBytes(segment.file_bytes), ", cannot be removed"));
  }
  progress->removed_bytes += segment.file_bytes;
  counters.AddAll({{"purge.segments", 1}, {"purge.bytes", segment.file_bytes}});
  return absl::OkStatus();
}

absl::StatusOr<Cache::PurgeProgress> Cache::Purge(const block::SpaceId* space, uint64_t cursor) {
  PurgeProgress progress{.cleared = {}, .total_bytes = core_->VerifyTotal()};
  if (cursor == 0) {
    PREFIXD_ASSIGN_OR_RETURN(progress.cleared, Clear(space));
    core_->Scrub(&progress);
    if (core_->store != nullptr) PREFIXD_RETURN_IF_ERROR(core_->PurgeDamaged(&progress));
    progress.passed_bytes = core_->arena->stats().capacity_bytes;
    progress.next = core_->store == nullptr ? 0 : kOnSsd;
    return progress;
  }
  if (core_->store == nullptr) return progress;
  for (const ssd::SegmentInfo& segment : core_->StayingSegments()) {
    if (segment.first_sequence <= (cursor & ~kOnSsd)) continue;
    PREFIXD_ASSIGN_OR_RETURN(const bool holds, core_->HoldsCleared(segment, space));
    if (holds) PREFIXD_RETURN_IF_ERROR(core_->PurgeSegment(segment, &progress));
    progress.passed_bytes = segment.file_bytes;
    progress.next = segment.first_sequence | kOnSsd;
    return progress;
  }
  core_->Scrub(&progress);  // what was read from SSD meanwhile, and came too late
  return progress;
}

}  // namespace prefixd::cache
