// Adopt: what an earlier daemon left in the arena's file, back into the tree. Nothing is read but
// records: pages are checked before their first use.
#include <algorithm>

#include "base/bytes.h"
#include "base/size.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

index::AdoptedPage Adopted(const ram::FoundPage& found, block::PageMarks* marks) {
  const ram::PageContent& page = found.content;
  return {.name = {.hash = page.name.block, .parent = page.parent},
          .serials = {.own = page.serial, .parent = page.parent_serial},
          .first_token = page.first_token,
          .tokens = {page.tokens.tokens.begin(), page.tokens.tokens.end()},
          .content = {page.tokens.content.begin(), page.tokens.content.end()},
          .ends = page.ends,
          .last_use = page.last_use,
          .page = {.group = page.name.group,
                   .rung = page.name.rung,
                   .extent = found.extent,
                   .check = page.check,
                   .page_bytes = page.page_bytes,
                   .payload_bytes = page.payload_bytes,
                   .marks = marks}};
}

// The record may be of another program version: the page must be what the layout says today.
bool Fits(const SpaceInfo& space, const ram::PageContent& page) {
  if (page.name.group >= space.identity.groups.size()) return false;
  const block::LayerGroup& group = space.identity.groups[page.name.group];
  const size_t tokens = page.tokens.tokens.size();
  const bool state = group.kind == block::LayerKind::kState;
  const bool known = state ? page.name.rung == tokens : page.name.rung < group.ladder.size();
  if (!known || page.name.tokens != tokens || tokens == 0 || tokens > space.identity.block_tokens ||
      !block::ValidateContent(page.tokens).ok()) {
    return false;
  }
  const block::PageLayout layout = block::LayoutOfPage(group, page.name.rung, page.name.tokens);
  return page.page_bytes == layout.page_bytes && page.payload_bytes == layout.payload_bytes;
}

}  // namespace

// What an earlier daemon left, as it is before anybody else takes extents or slots: its pages, and
// those that each slot of its sessions may be reading.
class Core::Legacy {
 public:
  explicit Legacy(Core* core)
      : found(core->arena->TakeFound()),
        held(core->arena->TakeHeld()),
        core_(core),
        held_(core->slots->Held()) {
    for (const ram::HeldSlot& slot : held_) slots_ |= uint64_t{1} << slot.slot;
  }
  void Add(const ram::FoundPage& found, const index::PageRef& ref) {
    for (const ram::HeldSlot& slot : held_) {
      if ((found.holders >> slot.slot & 1) == 0) continue;
      pages_[slot.slot].push_back(ref);
      bytes_[slot.slot] += found.content.page_bytes;
    }
  }
  // False: nobody reads it, it is the caller's to free.
  bool Keep(block::Extent extent, uint64_t holders) {
    if ((holders & slots_) == 0) return false;
    auto kept = std::make_shared<const KeptExtent>(core_, extent);
    for (const ram::HeldSlot& slot : held_) {
      if ((holders >> slot.slot & 1) != 0) kept_[slot.slot].push_back(kept);
    }
    return true;
  }
  // Their sessions, cut off.
  void Seat() {
    for (const ram::HeldSlot& slot : held_) Seat(slot);
  }

  std::vector<ram::FoundPage> found;
  std::vector<ram::HeldExtent> held;

 private:
  void Seat(const ram::HeldSlot& slot) {
    // Its id is gone with the daemon that gave it.
    auto session = std::make_shared<Session>(RandomSessionId(), "of an earlier daemon");
    session->key_hash = slot.key_hash;
    session->begun_us = core_->Now();
    session->peer = slot.owner;
    session->attached = false;
    session->slot = std::make_shared<const SlotHold>(core_, slot.slot);
    const std::vector<index::PageRef>& pages = pages_[slot.slot];
    const block::LeaseId lease =
        pages.empty() ? block::LeaseId{} : core_->index->AdoptLease(session->id, slot.slot, pages);
    base::MutexLock lock(core_->mutex);
    core_->sessions[session->id] = session;
    if (!lease && kept_[slot.slot].empty()) return;
    auto held = std::make_shared<Lease>(core_, lease, session->slot);
    held->begun_us = session->begun_us;
    held->kept = std::move(kept_[slot.slot]);
    held->SetFacts({.ram_bytes = bytes_[slot.slot], .pages = pages.size()});
    const block::LeaseId id{core_->lease_base + kOwnLeases + core_->next_own_lease++};
    session->leases.insert(id);
    core_->leases[id] = {session, std::move(held)};
  }

  Core* const core_;
  const std::vector<ram::HeldSlot> held_;
  uint64_t slots_ = 0;
  std::array<std::vector<index::PageRef>, block::kArenaSlots> pages_;
  std::array<uint64_t, block::kArenaSlots> bytes_{};
  std::array<std::vector<std::shared_ptr<const KeptExtent>>, block::kArenaSlots> kept_;
};

void Core::AdoptSpaces() {
  for (const ram::FoundSpace& found : arena->Spaces()) {
    const absl::StatusOr<block::SpaceIdentity> identity =
        block::DecodeSpaceIdentity(found.identity);
    if (!identity.ok() || block::IdOf(*identity) != found.id) continue;
    bool created = false;
    AddSpace(*identity, &created);
  }
}

std::shared_ptr<Core::Legacy> Core::FindLegacy() {
  if (!arena->shared()) return nullptr;
  return std::make_shared<Legacy>(this);
}

void Core::Adopt(Legacy* legacy) {
  if (legacy == nullptr) return;
  std::vector<ram::FoundPage>& found = legacy->found;
  // Parents first; coldest first, as found, among those that stand equally deep.
  std::ranges::stable_sort(found, {},
                           [](const ram::FoundPage& page) { return page.content.first_token; });
  uint64_t adopted = 0, bytes = 0, dropped = 0, held = 0;
  const auto keep_or_free = [&](block::Extent extent, uint64_t holders) {
    const bool kept = legacy->Keep(extent, holders);
    if (!kept) arena->Free(extent);
    ++(kept ? held : dropped);
  };
  for (const ram::FoundPage& page : found) {
    const SpacePtr space = SpaceOf(page.content.name.space);
    absl::StatusOr<index::PageRef> ref = absl::NotFoundError("unknown space or other layout");
    if (space != nullptr && Fits(*space, page.content)) {
      ref = index->Adopt(space->handle, Adopted(page, arena->marks(page.extent)));
    }
    if (!ref.ok()) {
      keep_or_free(page.extent, page.holders);
      continue;
    }
    ++adopted;
    bytes += page.content.page_bytes;
    legacy->Add(page, *ref);
  }
  for (const ram::HeldExtent& extent : legacy->held) {
    keep_or_free(extent.extent, extent.holders);
  }
  legacy->Seat();
  reap_bell.Ring();
  unverified_left = adopted > 0;
  counters.AddAll({{"adopted.pages", adopted},
                   {"adopted.bytes", bytes},
                   {"adopted.dropped", dropped},
                   {"adopted.held", held}});
  if (found.empty()) return;
  Log(LogLevel::kInfo,
      absl::StrCat("adopted ", adopted, " pages (", base::FormatBytes(bytes),
                   ") that an earlier daemon left in RAM; dropped ", dropped,
                   " without parent or twice there, kept ", held, " that a worker may be reading"));
}

}  // namespace prefixd::cache
