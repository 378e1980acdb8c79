// Adopt: what an earlier daemon left in the arena's file, back into the tree. Only records are
// read: pages are checked before their first use.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "cache/start/index_loader.h"
#include "cache/start/legacy.h"

namespace prefixd::cache {
namespace {

constexpr uint64_t kFitEvery = 256;  // pages, whose names take far less than a slab

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

void IndexLoader::AdoptSpaces() {
  for (const ram::FoundSpace& found : context_->arena->Spaces()) {
    const absl::StatusOr<block::SpaceIdentity> identity =
        block::DecodeSpaceIdentity(found.identity);
    if (!identity.ok() || block::IdOf(*identity) != found.id) continue;
    spaces_->AddEarlier(*identity, false);
  }
}

std::shared_ptr<Legacy> IndexLoader::FindLegacy() {
  if (!context_->arena->shared()) return nullptr;
  return std::make_shared<Legacy>(context_, sessions_);
}

void IndexLoader::Adopt(Legacy* legacy) {
  if (legacy == nullptr) return;
  std::vector<ram::FoundPage>& found = legacy->found;
  // Parents first; coldest first, as found, among those that stand equally deep.
  std::ranges::stable_sort(found, {},
                           [](const ram::FoundPage& page) { return page.content.first_token; });
  uint64_t adopted = 0, bytes = 0, dropped = 0, held = 0;
  const auto keep_or_free = [&](block::Extent extent, uint64_t holders) {
    const bool kept = legacy->Keep(extent, holders);
    if (!kept) context_->arena->Free(extent);
    ++(kept ? held : dropped);
  };
  for (const ram::FoundPage& page : found) {
    const SpacePtr space = spaces_->Find(page.content.name.space);
    absl::StatusOr<index::PageRef> ref = absl::NotFoundError("unknown space or other layout");
    if (space != nullptr && Fits(*space, page.content)) {
      ref =
          context_->index->Adopt(space->handle, Adopted(page, context_->arena->marks(page.extent)));
    }
    if (!ref.ok()) {
      keep_or_free(page.extent, page.holders);
      continue;
    }
    if (++adopted % kFitEvery == 0) room_->FitIndex();
    bytes += page.content.page_bytes;
    legacy->Add(page, *ref);
  }
  for (const ram::HeldExtent& extent : legacy->held) {
    keep_or_free(extent.extent, extent.holders);
  }
  room_->FitIndex();
  legacy->Seat();
  sessions_->NotifyEnded();
  context_->unverified_left = adopted > 0;
  context_->counters.AddAll({{"adopted.pages", adopted},
                             {"adopted.bytes", bytes},
                             {"adopted.dropped", dropped},
                             {"adopted.held", held}});
  if (found.empty()) return;
  context_->Log(
      LogLevel::kInfo,
      absl::StrCat("adopted ", adopted, " pages (", base::FormatBytes(bytes),
                   ") that an earlier daemon left in RAM; dropped ", dropped,
                   " without parent or twice there, kept ", held, " that a worker may be reading"));
}

}  // namespace prefixd::cache
