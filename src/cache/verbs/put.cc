// PutPage: bytes into extents of the reservation.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/checksum.h"
#include "base/status.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

uint64_t BytesIn(std::span<const std::span<const std::byte>> runs) {
  uint64_t bytes = 0;
  for (const std::span<const std::byte> run : runs) bytes += run.size();
  return bytes;
}

absl::Status CheckPiece(const Reservation& reservation, const PagePiece& piece, uint64_t bytes,
                        size_t* block_index) {
  const block::SpaceIdentity& identity = reservation.space->identity;
  const std::vector<block::BlockPlan>& blocks = reservation.reserved.plan.blocks;
  *block_index = piece.first_token / identity.block_tokens;
  if (*block_index >= blocks.size() || blocks[*block_index].first_token != piece.first_token) {
    return absl::InvalidArgumentError(
        absl::StrCat("put: no block of the reservation starts at token ", piece.first_token));
  }
  if (std::ranges::count(reservation.groups, piece.group) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("put: group ", piece.group, " is not one of the reservation's"));
  }
  const block::LayerGroup& group = identity.groups[piece.group];
  if (absl::Status status = reservation.CheckRung(*block_index, piece.group, piece.rung);
      !status.ok()) {
    return absl::InvalidArgumentError("put: " + std::string(status.message()));
  }
  const bool state = group.kind == block::LayerKind::kState;
  const uint32_t tokens = state ? piece.rung : blocks[*block_index].tokens;
  const uint64_t wants = block::LayoutOfPage(group, piece.rung, tokens).page_bytes;
  if (piece.tokens != tokens || piece.page_bytes != wants) {
    return absl::InvalidArgumentError(
        absl::StrCat("put: block ", *block_index, " of group ", piece.group, " has ", piece.tokens,
                     " tokens in ", piece.page_bytes, " bytes, the plan says ", tokens,
                     " tokens and the layout wants ", wants));
  }
  if (bytes == 0 || bytes > kMaxPieceBytes || piece.offset > wants ||
      bytes > wants - piece.offset) {
    return absl::InvalidArgumentError(absl::StrCat("put: a piece of ", bytes, " bytes at offset ",
                                                   piece.offset, ", a page of ", wants,
                                                   " travels in pieces of 1 to ", kMaxPieceBytes));
  }
  const block::PageName name = reservation.NameOf(*block_index, piece.group, piece.rung);
  if (piece.sum_seed != 0 && piece.sum_seed != block::CheckSeed(name)) {
    return absl::InvalidArgumentError(absl::StrCat("put: block ", *block_index, " of group ",
                                                   piece.group, " comes with sum_seed ",
                                                   piece.sum_seed, ", which is another page's"));
  }
  return absl::OkStatus();
}

// Puts the piece behind what arrived before. False if the sum that came with it differs. The check
// of the page is made on the way, of what is stored: at Commit all of it would come from memory
// again. If the sender has the page's seed its sum is that check, else it is one more.
bool TakeBytes(const PagePiece& piece, std::span<const std::span<const std::byte>> runs,
               std::byte* extent, ArrivingPage* page) {
  base::Xxh3Stream transport;
  const bool seeded = piece.sum_seed != 0;
  page->sum->CopyAndUpdate(runs, extent + page->received, seeded ? nullptr : &transport);
  page->received += BytesIn(runs);
  if ((seeded ? page->sum->Sum() : transport.Sum()) != piece.xxh3) return false;
  if (page->received < page->page_bytes) return true;
  page->check = page->sum->Finish();  // 0, if ever: Commit knows what that is as a check
  page->sum.reset();
  page->partial.reset();
  return true;
}

}  // namespace

absl::Status PutPage(Context& context, Sessions& sessions, Room& room, block::SessionId session,
                     block::ReservationId id, const PagePiece& piece, const Patience& patience) {
  PREFIXD_ASSIGN_OR_RETURN(const ReservationPtr reservation, sessions.FindReservation(session, id));
  const std::span<const std::span<const std::byte>> runs =
      piece.runs.empty() ? std::span(&piece.data, 1) : piece.runs;
  const uint64_t bytes = BytesIn(runs);
  size_t block_index = 0;
  if (absl::Status status = CheckPiece(*reservation, piece, bytes, &block_index); !status.ok()) {
    context.counters.Add("refused.bad_page");
    return status;
  }
  InFlight in_flight(&context.in_flight_bytes, bytes);
  const PageKey key = reservation->KeyOf(block_index, piece.group, piece.rung);
  bool first_piece = false;
  {
    base::MutexLock lock(reservation->mutex);
    first_piece = piece.offset == 0 && !reservation->arriving.contains(key);
  }
  // Outside the reservation's mutex: this may wait, and the session may end meanwhile.
  block::Extent extent;
  ArrivingPage fresh{.rung = piece.rung, .extent = {}, .page_bytes = piece.page_bytes};
  if (first_piece) {
    const uint64_t full = reservation->space->FullPageBytes(piece.group, piece.rung);
    const uint64_t extent_bytes = context.arena->ExtentBytes(piece.page_bytes, full);
    PREFIXD_RETURN_IF_ERROR(
        sessions.ChargeArriving(reservation.get(), extent_bytes, patience, &fresh));
    PREFIXD_ASSIGN_OR_RETURN(extent,
                             room.Take(piece.page_bytes, full, patience, &reservation->cancelled));
  }
  base::MutexLock lock(reservation->mutex);
  absl::Status usable = reservation->closed ? absl::NotFoundError("put: the reservation ended")
                        : block_index < reservation->done
                            ? absl::FailedPreconditionError("put: the block is committed already")
                            : absl::OkStatus();
  auto page = reservation->arriving.find(key);
  if (usable.ok() && extent && page == reservation->arriving.end()) {
    fresh.extent = extent;
    fresh.sum = std::make_shared<base::Xxh3Stream>();
    fresh.sum->Begin(block::CheckSeed(reservation->NameOf(block_index, piece.group, piece.rung)));
    page = reservation->arriving.emplace(key, std::move(fresh)).first;
    extent = {};
  }
  if (extent)
    context.arena->Free(extent);  // too late, or another stream of this reservation was first
  PREFIXD_RETURN_IF_ERROR(usable);
  if (page == reservation->arriving.end() || page->second.rung != piece.rung ||
      page->second.received != piece.offset || page->second.sum == nullptr) {
    context.counters.Add("refused.bad_page");
    return absl::InvalidArgumentError(absl::StrCat("put: a piece at offset ", piece.offset,
                                                   " of block ", block_index, " of group ",
                                                   piece.group, " is out of order"));
  }
  if (!TakeBytes(piece, runs, context.arena->data(page->second.extent), &page->second)) {
    context.arena->Free(page->second.extent);
    reservation->arriving.erase(page);
    context.counters.Add("refused.bad_page");
    return absl::InvalidArgumentError(absl::StrCat("put: block ", block_index, " of group ",
                                                   piece.group,
                                                   " arrived damaged, its XXH3 differs"));
  }
  context.counters.Add("bytes.received", bytes);
  return absl::OkStatus();
}

}  // namespace prefixd::cache::verbs
