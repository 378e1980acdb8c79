// Ceilings and time to live of spaces.
#include "cache/room/room.h"

namespace prefixd::cache {

void Room::KeepLimits() {
  tables_->sessions.EndIdleReservations();
  LimitedSpaces& limited = tables_->limited;
  index::PrefixIndex& index = *context_->index;
  if (!limited.IsDue(context_->Now())) return;
  for (const LimitedSpaces::Due& due : limited.Take(context_->Now(), index.Counts().stamp)) {
    const uint64_t ssd_ceiling = due.limits.ssd_ceiling_bytes;
    if (due.unused_before_stamp > 0 || ssd_ceiling > 0) {
      const index::Evicted forgotten = index.ForgetUnused(
          due.space, due.unused_before_stamp, ssd_ceiling > 0 ? ssd_ceiling : ~uint64_t{0});
      if (forgotten.pages > 0) context_->counters.Add("pages.expired", forgotten.pages);
    }
    KeepCeiling(due.space);
  }
  context_->FreeTaken();
}

void Room::KeepCeiling(block::SpaceHandle space) {
  if (tables_->limited.empty()) return;
  const uint64_t ceiling = tables_->limited.Of(space).ram_ceiling_bytes;
  if (ceiling == 0) return;
  context_->CountEvicted(context_->index->EvictAbove(space, ceiling, context_->MayDropDirty()));
  context_->FreeTaken();
  block::SpaceSummary summary{.handle = space, .identity = {}, .limits = {}};
  context_->index->Summarize(&summary);
  // What is left above it is dirty, and can go once it is written.
  if (context_->store != nullptr && summary.ram_extent_bytes > ceiling) spill_->Ask();
}

}  // namespace prefixd::cache
