// Purge: a clear that leaves nothing behind, segment by segment.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "base/status.h"
#include "cache/store/record.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

// Cursors: sequences of the SSD tier with this bit.
constexpr uint64_t kOnSsd = uint64_t{1} << 63;

void Scrub(Context& context, Room& room, Cache::PurgeProgress* progress) {
  context.FreeTaken();
  const index::PrefixIndex::Places places = context.index->ListPlaces();
  context.arena->Scrub(places.extents);
  room.SlabsChanged();
  progress->leased_bytes = places.detached_bytes;
}

// Whether the segment holds bytes of the space, or of any, from before it was cleared: by its
// records, which are in the segment of their pages. One that cannot be read may be anybody's.
bool HoldsCleared(const Context& context, const ssd::SegmentInfo& segment,
                  const block::SpaceId* space) {
  const ssd::ClearedBorders borders = context.store->Borders();
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
  const absl::Status read = context.store->ForEachRecordOf(segment, look, &unread);
  return holds || !read.ok() || unreadable + unread > 0;
}

// Databases that were moved aside: nobody can tell what is in them.
absl::Status PurgeDamaged(const Context& context, Segments& segments,
                          Cache::PurgeProgress* progress) {
  progress->removed_bytes += context.store->DamagedCopies().bytes;
  while (segments.RemoveDamaged()) {
  }
  const ssd::SegmentStore::Kept left = context.store->DamagedCopies();
  if (left.count == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("purge: ", left.count, " damaged stores of ",
                                             base::FormatBytes(left.bytes), " cannot be removed"));
}

absl::Status PurgeSegment(Context& context, Segments& segments, Dropper& dropper,
                          const ssd::SegmentInfo& segment, Cache::PurgeProgress* progress) {
  const auto same = [&](const ssd::SegmentInfo& other) {
    return other.first_sequence == segment.first_sequence;
  };
  {
    base::MutexLock lock(segments.mutex);
    if (std::ranges::none_of(dropper.Staying(), same)) return absl::OkStatus();  // it has left
    Batch batch;
    batch.leaving.segments = {segment};
    batch.leaving.blocks =
        context.index->PickRewrite({.first = segment.first_sequence,
                                    .last = segment.last_sequence,
                                    .hot_after = std::numeric_limits<int64_t>::min(),
                                    .hot_bytes = std::numeric_limits<uint64_t>::max(),
                                    .warm_after = std::numeric_limits<int64_t>::max()});
    batch.leaving.bytes = PageBytesOf(batch.leaving.blocks);
    batch.blocks = batch.leaving.blocks;
    batch.first = batch.blocks.size();
    if (batch.blocks.empty()) {
      segments.Leave(segment);
    } else if (segments.MakeRoom(0, 0, &batch.leaving) != SsdRoom::kNone &&
               !batch.leaving.segments.empty()) {
      PREFIXD_ASSIGN_OR_RETURN(const SegmentSums sums, segments.Write(std::move(batch)));
      progress->rewritten_bytes += sums.rewritten_bytes;
    }
  }
  for (;;) {
    const uint64_t seen = dropper.ended();
    if (std::ranges::none_of(context.store->Segments(), same)) break;
    if (dropper.WaitBeyond(seen)) continue;
    return absl::UnavailableError(
        absl::StrCat("purge: the files of segment ", segment.first_sequence, ", ",
                     base::FormatBytes(segment.file_bytes), ", cannot be removed"));
  }
  progress->removed_bytes += segment.file_bytes;
  context.counters.AddAll({{"purge.segments", 1}, {"purge.bytes", segment.file_bytes}});
  return absl::OkStatus();
}

}  // namespace

uint64_t BytesInBothTiers(const Context& context, const Dropper& dropper) {
  uint64_t bytes = context.arena->stats().capacity_bytes;
  if (context.store == nullptr) return bytes;
  for (const ssd::SegmentInfo& segment : dropper.Staying()) bytes += segment.file_bytes;
  return bytes;
}

absl::StatusOr<Cache::PurgeProgress> Purge(Context& context, Tables& tables, PageRecords& records,
                                           Room& room, Segments& segments, Dropper& dropper,
                                           Tier& tier, Far& far, const block::SpaceId* space,
                                           uint64_t cursor) {
  Cache::PurgeProgress progress{.cleared = {}, .total_bytes = BytesInBothTiers(context, dropper)};
  if (cursor == 0) {
    PREFIXD_ASSIGN_OR_RETURN(progress.cleared,
                             Clear(context, tables, records, segments, tier, far, space));
    Scrub(context, room, &progress);
    if (context.store != nullptr) {
      PREFIXD_RETURN_IF_ERROR(PurgeDamaged(context, segments, &progress));
    }
    progress.passed_bytes = context.arena->stats().capacity_bytes;
    progress.next = context.store == nullptr ? 0 : kOnSsd;
    return progress;
  }
  if (context.store == nullptr) return progress;
  for (const ssd::SegmentInfo& segment : dropper.Staying()) {
    if (segment.first_sequence <= (cursor & ~kOnSsd)) continue;
    if (HoldsCleared(context, segment, space)) {
      PREFIXD_RETURN_IF_ERROR(PurgeSegment(context, segments, dropper, segment, &progress));
    }
    progress.passed_bytes = segment.file_bytes;
    progress.next = segment.first_sequence | kOnSsd;
    return progress;
  }
  Scrub(context, room, &progress);  // what was read from SSD meanwhile, and came too late
  return progress;
}

}  // namespace prefixd::cache::verbs
