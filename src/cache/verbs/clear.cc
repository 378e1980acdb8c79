// Clear: RAM first, then the border on SSD, which is tried again until the disk takes it.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

constexpr std::chrono::seconds kRaisePatience(2);

void ClearInRam(Context& context, PinTable& pins, PageRecords& records, const SpaceInfo& space,
                Cache::Cleared* cleared) {
  base::MutexLock lock(records.mutex);
  block::SpaceSummary before{.handle = space.handle, .identity = {}, .limits = {}};
  context.index->Summarize(&before);
  cleared->waiting_ssd_bytes += before.ssd_page_bytes;
  cleared->bytes += context.index->Clear(space.handle);
  pins.RemoveThoseOf(space);
  context.arena->ClearSpace(space.ordinal);  // a crash does not bring it back
  ++cleared->spaces;
}

}  // namespace

absl::StatusOr<Cache::Cleared> Clear(Context& context, Tables& tables, PageRecords& records,
                                     Segments& segments, Tier& tier, Far& far,
                                     const block::SpaceId* id) {
  Cache::Cleared cleared;
  // Before the index: what other hosts stored does not come back behind it.
  if (far.on()) {
    cleared.remote_waits =
        !far.generations.Raise(id, std::chrono::steady_clock::now() + kRaisePatience).ok();
  }
  {
    // No segment is under way while the border is set: everything written before it is gone,
    // everything after it is new.
    base::MutexLock lock(segments.mutex);
    std::vector<SpacePtr> targets;
    for (SpacePtr& space : tables.spaces.All()) {
      if (id == nullptr || space->id == *id) targets.push_back(std::move(space));
    }
    // A tier that is not open yet may have a space that nobody knows.
    const bool closed = context.has_ssd() && context.store == nullptr;
    if (id != nullptr && targets.empty() && !closed) {
      return absl::NotFoundError(absl::StrCat("clear: no space ", base::ToHex(*id)));
    }
    for (const SpacePtr& space : targets) {
      ClearInRam(context, tables.pins, records, *space, &cleared);
    }
    cleared.border_waits = !tier.SetBorders(
        id != nullptr ? std::span(id, 1) : std::span<const block::SpaceId>(), id == nullptr);
  }
  context.FreeTaken();
  context.counters.Add("spaces.cleared", cleared.spaces);
  return cleared;
}

}  // namespace prefixd::cache::verbs
