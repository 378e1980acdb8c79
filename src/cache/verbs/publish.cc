#include "cache/verbs/publish.h"

#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::cache {
namespace {

absl::StatusOr<index::NewPage> PageOf(const Context& context, const Reservation& reservation,
                                      size_t block_index, uint32_t group, ArrivingPage* page) {
  if (page->received != page->page_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("commit: block ", block_index, " of group ",
                                                   group, " has a snapshot that is not whole, at ",
                                                   page->rung));
  }
  if (page->check == 0) {
    page->check = block::PageCheck(reservation.NameOf(block_index, group, page->rung),
                                   {context.arena->data(page->extent), page->page_bytes});
  }
  const uint64_t payload_bytes =
      block::LayoutOfPage(reservation.space->identity.groups[group], page->rung,
                          reservation.reserved.plan.blocks[block_index].tokens)
          .payload_bytes;
  return index::NewPage{.group = group,
                        .rung = page->rung,
                        .extent = page->extent,
                        .check = page->check,
                        .page_bytes = page->page_bytes,
                        .payload_bytes = payload_bytes,
                        .marks = context.arena->marks(page->extent)};
}

// Returns the pages of a block, checked and ready to publish; of sliding groups and snapshots those
// that came. InvalidArgument if one is missing or not whole.
absl::StatusOr<std::vector<index::NewPage>> PagesOf(const Context& context,
                                                    Reservation* reservation, size_t block_index)
    PREFIXD_REQUIRES(reservation->mutex) {
  std::vector<index::NewPage> pages;
  const SpaceInfo& space = *reservation->space;
  const block::BlockPlan& block = reservation->reserved.plan.blocks[block_index];
  for (uint32_t group : reservation->groups) {
    auto found = reservation->arriving.lower_bound({block_index, group, 0});
    const auto is_ours = [&]() PREFIXD_REQUIRES(reservation->mutex) {
      return found != reservation->arriving.end() && std::get<0>(found->first) == block_index &&
             std::get<1>(found->first) == group;
    };
    const bool full = space.identity.groups[group].kind == block::LayerKind::kFull;
    const bool wanted = full && block.rungs[group] != block::kNoLimit;
    const bool whole = !is_ours() || found->second.received == found->second.page_bytes;
    if ((wanted && !is_ours()) || !whole) {
      return absl::InvalidArgumentError(
          absl::StrCat("commit: block ", block_index, " has no whole page of group ", group));
    }
    for (; is_ours(); ++found) {
      PREFIXD_ASSIGN_OR_RETURN(const index::NewPage page,
                               PageOf(context, *reservation, block_index, group, &found->second));
      pages.push_back(page);
    }
  }
  return pages;
}

// Records the pages in the arena's file, where the next daemon finds them if this one dies.
void WriteRecords(Context& context, const Reservation& reservation, size_t block_index,
                  const index::Serials& serials, const std::vector<index::NewPage>& pages) {
  const block::BlockPlan& plan = reservation.reserved.plan.blocks[block_index];
  for (const index::NewPage& page : pages) {
    const Reservation::Recorded block = reservation.RecordedOf(block_index, page.group, page.rung);
    const std::vector<block::ContentKey> content =
        block::CutContent(reservation.content, block.first_token, block.first_token + block.tokens);
    const std::span<const block::Token> tokens =
        std::span(reservation.tokens).subspan(block.first_token, block.tokens);
    context.arena->Publish(page.extent,
                           {.name = reservation.NameOf(block_index, page.group, page.rung),
                            .space = reservation.space->ordinal,
                            .parent = block.name.parent,
                            .serial = block.tokens == plan.tokens ? serials.own : 0,
                            .parent_serial = serials.parent,
                            .first_token = block.first_token,
                            .page_bytes = page.page_bytes,
                            .payload_bytes = page.payload_bytes,
                            .check = page.check,
                            .tokens = {tokens, content},
                            .ends = {},
                            .last_use = context.options.clock->UnixMicros()});
  }
}

// Records come first: what is in the tree is found after a crash too. If others store its parent or
// the block itself meanwhile, under serials of their own, it is done once more.
absl::StatusOr<block::StoreResult> PublishPages(Context& context, const Reservation& reservation,
                                                size_t block_index,
                                                const std::vector<index::NewPage>& pages) {
  const block::ReservationId id = reservation.reserved.plan.reservation;
  const auto block = static_cast<uint32_t>(block_index);
  if (!context.arena->shared()) return context.index->Publish(id, block, pages);
  while (true) {
    PREFIXD_ASSIGN_OR_RETURN(const index::Serials serials, context.index->SerialsFor(id, block));
    WriteRecords(context, reservation, block_index, serials, pages);
    absl::StatusOr<block::StoreResult> stored = context.index->Publish(id, block, pages, serials);
    if (!absl::IsAborted(stored.status())) return stored;
  }
}

}  // namespace

absl::StatusOr<block::StoreResult> PublishBlock(Context& context, Reservation* reservation,
                                                size_t block_index) {
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<index::NewPage> pages,
                           PagesOf(context, reservation, block_index));
  PREFIXD_ASSIGN_OR_RETURN(const block::StoreResult stored,
                           PublishPages(context, *reservation, block_index, pages));
  if (stored == block::StoreResult::kStored) {
    for (const index::NewPage& page : pages) context.CountAsked(page.page_bytes);
  }
  // The extents are the index's now; on an error they stayed ours.
  reservation->arriving.erase(reservation->arriving.lower_bound({block_index, 0, 0}),
                              reservation->arriving.lower_bound({block_index + 1, 0, 0}));
  return stored;
}

}  // namespace prefixd::cache
