// Slabs are emptied so that another extent size, or a smaller budget, can have them, and backed
// ahead of need: whole slabs get memory, and a step before where one is being filled is mapped too.
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "cache/room/room.h"

namespace prefixd::cache {
namespace {

constexpr uint64_t kSlabsAhead = 2;
constexpr std::chrono::milliseconds kRetryAfter(50);

// The bytes may be given up, and the extent reused, while they are copied, since nobody holds them.
// Hence the check of the copy.
bool CopyPage(const index::PageInfo& page, block::Extent to, ram::Arena* arena) {
  std::memcpy(arena->data(to), arena->data(page.extent), page.page_bytes);
  return block::PageCheck(page.name, {arena->data(to), page.page_bytes}) == page.check;
}

bool MovePage(const index::PageInfo& page, block::Extent to, PageRecords* records,
              Context* context) {
  if (!CopyPage(page, to, context->arena.get())) return false;
  base::MutexLock lock(records->mutex);
  records->Write(page, to);
  return context->index->FinishMove(page.ref, page.extent, to, context->arena->marks(to));
}

}  // namespace

// Extents inside the slab that come up meanwhile are put aside: they would be emptied again.
std::optional<block::Extent> Room::PlaceOutside(const index::PageInfo& page,
                                                const ram::SlabRange& slab,
                                                std::vector<block::Extent>* inside) {
  const SpacePtr space = tables_->spaces.Find(page.name.space);
  if (space == nullptr) return std::nullopt;
  while (true) {
    const absl::StatusOr<block::Extent> extent = context_->arena->Allocate(
        page.page_bytes, space->FullPageBytes(page.ref.group, page.ref.rung));
    if (!extent.ok()) return std::nullopt;
    if (extent->offset < slab.begin || extent->offset >= slab.end) return *extent;
    inside->push_back(*extent);
  }
}

size_t Room::MoveOut(const ram::SlabRange& slab, uint64_t may_evict) {
  std::vector<block::Extent> inside;
  size_t moved = 0;
  uint64_t evicted = 0;
  for (const index::PageInfo& page : context_->index->PickMovable(slab.begin, slab.end)) {
    std::optional<block::Extent> to = PlaceOutside(page, slab, &inside);
    while (!to.has_value() && evicted < may_evict && EvictColdest(&evicted)) {
      to = PlaceOutside(page, slab, &inside);
    }
    if (!to.has_value()) break;
    if (MovePage(page, *to, records_, context_)) {
      ++moved;
    } else {
      context_->arena->Free(*to);
    }
  }
  if (moved > 0) context_->counters.Add("pages.moved", moved);
  for (block::Extent extent : inside) context_->arena->Free(extent);
  context_->FreeTaken();
  return moved;
}

bool Room::EmptySlab(const ram::SlabRange& slab, uint64_t may_evict) {
  const size_t moved = MoveOut(slab, may_evict);
  const index::Evicted evicted =
      context_->index->EvictRange(slab.begin, slab.end, context_->MayDropDirty());
  context_->CountEvicted(evicted);
  context_->FreeTaken();
  context_->counters.Add("slabs.emptied");
  return moved + evicted.pages > 0;
}

bool Room::RetireSlab() {
  const std::optional<ram::SlabRange> slab = context_->arena->SlabToRetire();
  if (!slab.has_value()) return false;
  // What is coldest goes, wherever it stands, and not what happens to stand in this slab.
  if (!EmptySlab(*slab, 2 * context_->arena->stats().slab_bytes) && context_->store != nullptr) {
    spill_->Ask();  // what is left may be dirty
  }
  return true;
}

bool Room::WantsMemoryAhead() const { return context_->arena->wants_populating() || WantsSlab(); }

bool Room::WantsSlab() const {
  if (!context_->arena->shared() || all_backed_) return false;
  const ram::ArenaStats stats = context_->arena->stats();
  return stats.slabs_in_service - stats.slabs_in_use < kSlabsAhead;
}

void Room::SlabsChanged() {
  all_backed_ = false;
  slab_work_.Notify();
}

bool Room::AwaitsUnpinning() {
  const ram::Arena::Leaving left = context_->arena->EndLeaving();
  if (left.late_slots == 0) return left.waits;
  for (const block::SessionInfo& session : tables_->sessions.List()) {
    if (session.slot == block::kNoSlot || (left.late_slots >> session.slot & 1) == 0) continue;
    context_->counters.Add("arena.device_pins_late");
    context_->Log(
        LogLevel::kWarning,
        absl::StrCat("worker \"", absl::CHexEscape(session.worker), "\" (pid ", session.pid,
                     ") did not unpin in time what prefixd gave back: up to ",
                     base::FormatBytes(session.device_pinned_bytes),
                     " may be in memory beside the budget"));
  }
  return left.waits;
}

bool Room::Step() {
  const bool retiring = RetireSlab();
  bool more = true;
  while (more) {
    while (context_->arena->PopulateAhead()) {
    }
    more = !retiring && WantsSlab();
    if (more) all_backed_ = !context_->arena->BackOneMore();
  }
  return AwaitsUnpinning() || retiring;
}

void Room::Run() {
  bool retiring = true;
  do {
    retiring = Step();
  } while (slab_work_.Wait(retiring ? std::optional(kRetryAfter) : std::nullopt));
}

}  // namespace prefixd::cache
