// Clear: RAM first, then the border on SSD, which is tried again until the disk takes it.
#include "base/bytes.h"
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {

void Core::ClearInRam(const SpaceInfo& space, Cache::Cleared* cleared) {
  base::MutexLock lock(clear_mutex);
  block::SpaceSummary before{.handle = space.handle, .identity = {}, .limits = {}};
  index->Summarize(&before);
  cleared->waiting_ssd_bytes += before.ssd_page_bytes;
  cleared->bytes += index->Clear(space.handle);
  DropPinsOf(space);
  arena->ClearSpace(space.ordinal);  // a crash does not bring it back
  ++cleared->spaces;
}

absl::StatusOr<Cache::Cleared> Cache::Clear(const block::SpaceId* id) {
  Cleared cleared;
  {
    // No segment is under way while the border is set: everything written before it is gone,
    // everything after it is new.
    base::MutexLock segment(core_->segment_mutex);
    std::vector<SpacePtr> targets;
    {
      base::MutexLock lock(core_->mutex);
      for (const auto& [known, space] : core_->spaces_by_id) {
        if (id == nullptr || known == *id) targets.push_back(space);
      }
    }
    // A tier that is not open yet may have a space that nobody knows.
    const bool closed = core_->options.ssd_budget_bytes > 0 && core_->store == nullptr;
    if (id != nullptr && targets.empty() && !closed) {
      return absl::NotFoundError(absl::StrCat("clear: no space ", base::ToHex(*id)));
    }
    for (const SpacePtr& space : targets) core_->ClearInRam(*space, &cleared);
    cleared.border_waits = !core_->SetBorders(
        id != nullptr ? std::span(id, 1) : std::span<const block::SpaceId>(), id == nullptr);
  }
  core_->FreeTaken();
  core_->counters.Add("spaces.cleared", cleared.spaces);
  return cleared;
}

}  // namespace prefixd::cache
