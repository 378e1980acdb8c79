// Reserve: what is missing of a sequence, announced before its bytes travel. PutPage: bytes into
// extents of the reservation.
#include <algorithm>
#include <cstring>

#include "base/checksum.h"
#include "base/status.h"
#include "cache/core.h"
#include "cache/request.h"

namespace prefixd::cache {
namespace {

absl::Status CheckPiece(const Reservation& reservation, const PagePiece& piece,
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
  if (piece.rung >= group.ladder.size()) {
    return absl::InvalidArgumentError(absl::StrCat("put: rung ", piece.rung, " of group ",
                                                   piece.group, ", its ladder has ",
                                                   group.ladder.size()));
  }
  const uint32_t tokens = blocks[*block_index].tokens;
  const uint64_t wants = block::LayoutOfPage(group, piece.rung, tokens).page_bytes;
  if (piece.tokens != tokens || piece.page_bytes != wants) {
    return absl::InvalidArgumentError(
        absl::StrCat("put: block ", *block_index, " of group ", piece.group, " has ", piece.tokens,
                     " tokens in ", piece.page_bytes, " bytes, the plan says ", tokens,
                     " tokens and the layout wants ", wants));
  }
  if (piece.data.empty() || piece.data.size() > kMaxPiece ||
      piece.offset + piece.data.size() > wants) {
    return absl::InvalidArgumentError(
        absl::StrCat("put: a piece of ", piece.data.size(), " bytes at offset ", piece.offset,
                     ", a page of ", wants, " travels in pieces of 1 to ", kMaxPiece));
  }
  if (base::Xxh3(piece.data) != piece.xxh3) {
    return absl::InvalidArgumentError(absl::StrCat("put: block ", *block_index, " of group ",
                                                   piece.group,
                                                   " arrived damaged, its XXH3 differs"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<block::ReservePlan> Cache::Reserve(block::SessionId session,
                                                  const ReserveRequest& request) {
  if (!core_->HasSession(session))
    return absl::NotFoundError("reserve: unknown session, attach first");
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, core_->FindSpace(request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.writable));
  auto reservation = std::make_shared<Reservation>();
  reservation->session = session;
  reservation->space = space;
  reservation->groups = request.groups;
  if (request.groups.empty()) {
    for (uint32_t g = 0; g < space->identity.groups.size(); ++g) reservation->groups.push_back(g);
  }
  PREFIXD_ASSIGN_OR_RETURN(
      reservation->reserved,
      core_->index->Reserve(request.space, {request.tokens, request.content},
                            {.groups = request.groups, .rungs = request.writable}, session));
  const block::ReservePlan plan = reservation->reserved.plan;
  {
    base::MutexLock lock(core_->mutex);
    if (core_->sessions.contains(session)) {
      core_->reservations[plan.reservation] = std::move(reservation);
      return plan;
    }
  }
  core_->index->CloseReservation(plan.reservation).IgnoreError();
  return absl::NotFoundError("reserve: the session ended");
}

absl::Status Cache::PutPage(block::SessionId session, block::ReservationId id,
                            const PagePiece& piece, base::Deadline deadline) {
  PREFIXD_ASSIGN_OR_RETURN(const ReservationPtr reservation, core_->FindReservation(session, id));
  size_t block_index = 0;
  if (absl::Status status = CheckPiece(*reservation, piece, &block_index); !status.ok()) {
    core_->counters.Add("refused.bad_page");
    return status;
  }
  InFlight in_flight(&core_->in_flight_bytes, piece.data.size());
  const auto key = std::make_pair(block_index, piece.group);
  bool first_piece = false;
  {
    base::MutexLock lock(reservation->mutex);
    first_piece = piece.offset == 0 && !reservation->staged.contains(key);
  }
  // Outside the reservation's mutex: this may wait, and the session may end meanwhile.
  block::Extent extent;
  if (first_piece) {
    const uint64_t full = reservation->space->FullPageBytes(piece.group, piece.rung);
    PREFIXD_ASSIGN_OR_RETURN(extent, core_->AllocateExtent(piece.page_bytes, full, deadline));
  }
  base::MutexLock lock(reservation->mutex);
  absl::Status usable = reservation->closed ? absl::NotFoundError("put: the reservation ended")
                        : block_index < reservation->done
                            ? absl::FailedPreconditionError("put: the block is committed already")
                            : absl::OkStatus();
  auto staged = reservation->staged.find(key);
  if (usable.ok() && extent && staged == reservation->staged.end()) {
    const StagedPage page{.rung = piece.rung, .extent = extent, .page_bytes = piece.page_bytes};
    staged = reservation->staged.emplace(key, page).first;
    extent = {};
  }
  if (extent)
    core_->arena->Free(extent);  // too late, or another stream of this reservation was first
  PREFIXD_RETURN_IF_ERROR(usable);
  if (staged == reservation->staged.end() || staged->second.rung != piece.rung ||
      staged->second.received != piece.offset) {
    core_->counters.Add("refused.bad_page");
    return absl::InvalidArgumentError(absl::StrCat("put: a piece at offset ", piece.offset,
                                                   " of block ", block_index, " of group ",
                                                   piece.group, " is out of order"));
  }
  std::memcpy(core_->arena->data(staged->second.extent) + piece.offset, piece.data.data(),
              piece.data.size());
  staged->second.received += piece.data.size();
  core_->counters.Add("bytes.received", piece.data.size());
  return absl::OkStatus();
}

absl::Status Cache::Abandon(block::SessionId session, block::ReservationId id) {
  PREFIXD_RETURN_IF_ERROR(core_->FindReservation(session, id).status());
  core_->DropReservation(id);
  core_->counters.Add("reservations.abandoned");
  return absl::OkStatus();
}

}  // namespace prefixd::cache
