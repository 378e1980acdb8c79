#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "cache/verbs/staged.h"

namespace prefixd::cache {
namespace {

constexpr uint64_t kAlignment = 128;

absl::Status CheckPlace(const Reservation& reservation, const StagedPlace& place, uint32_t tokens,
                        uint64_t staging_bytes) {
  const block::SpaceIdentity& identity = reservation.space->identity;
  const std::vector<block::BlockPlan>& blocks = reservation.reserved.plan.blocks;
  const size_t index = place.first_token / identity.block_tokens;
  if (index >= blocks.size() || blocks[index].first_token != place.first_token ||
      place.first_token >= tokens) {
    return absl::InvalidArgumentError(absl::StrCat("commit: staged: no block of the first ", tokens,
                                                   " tokens starts at token ", place.first_token));
  }
  if (std::ranges::count(reservation.groups, place.group) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("commit: staged: group ", place.group, " is not one of the reservation's"));
  }
  const block::LayerGroup& group = identity.groups[place.group];
  if (absl::Status status = reservation.CheckRung(index, place.group, place.rung); !status.ok()) {
    return absl::InvalidArgumentError("commit: staged: " + std::string(status.message()));
  }
  const uint64_t bytes = block::LayoutOfPage(group, place.rung, blocks[index].tokens).page_bytes;
  if (place.offset % kAlignment != 0 || bytes > staging_bytes ||
      place.offset > staging_bytes - bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("commit: staged: a page of ", bytes, " bytes at offset ", place.offset,
                     ", offsets are multiples of ", kAlignment, " and the session's staging has ",
                     staging_bytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStaged(Reservation* reservation, const CommitRequest& request,
                         uint64_t staging_bytes) {
  std::set<PageKey> seen;
  base::MutexLock lock(reservation->mutex);
  const uint32_t block_tokens = reservation->space->identity.block_tokens;
  for (const StagedPlace& place : request.staged) {
    PREFIXD_RETURN_IF_ERROR(CheckPlace(*reservation, place, request.tokens, staging_bytes));
    const size_t block = place.first_token / block_tokens;
    const PageKey key = reservation->KeyOf(block, place.group, place.rung);
    if (!seen.insert(key).second || reservation->arriving.contains(key)) {
      return absl::InvalidArgumentError(absl::StrCat("commit: staged: the page of group ",
                                                     place.group, " at token ", place.first_token,
                                                     " comes twice"));
    }
    if (block < reservation->done) {
      return absl::InvalidArgumentError(absl::StrCat("commit: staged: the block at token ",
                                                     place.first_token, " is committed already"));
    }
  }
  return absl::OkStatus();
}

absl::Status TakeStaged(Context& context, Room& room, Reservation* reservation,
                        const StagedPlace& place, const ram::Staging& from,
                        const Patience& patience) {
  const SpaceInfo& space = *reservation->space;
  const size_t block = place.first_token / space.identity.block_tokens;
  ArrivingPage page;
  page.rung = place.rung;
  page.page_bytes = page.received =
      block::LayoutOfPage(space.identity.groups[place.group], place.rung,
                          reservation->reserved.plan.blocks[block].tokens)
          .page_bytes;
  PREFIXD_ASSIGN_OR_RETURN(page.extent,
                           room.Take(page.page_bytes, space.FullPageBytes(place.group, place.rung),
                                     patience, &reservation->cancelled));
  std::byte* const stored = context.arena->data(page.extent);
  const std::byte* const staged = from.Read(place.offset, {stored, page.page_bytes});
  if (staged == nullptr) {
    context.arena->Free(page.extent);
    return absl::InvalidArgumentError(
        absl::StrCat("commit: staged: the session's staging ends before offset ",
                     place.offset + page.page_bytes, ": its worker made it shorter"));
  }
  const block::PageName name = reservation->NameOf(block, place.group, place.rung);
  page.check = staged == stored ? block::PageCheck(name, {stored, page.page_bytes})
                                : block::CopyAndCheck(name, {staged, page.page_bytes}, stored);
  context.counters.AddAll({{"bytes.received", page.page_bytes}, {"bytes.staged", page.page_bytes}});
  base::MutexLock lock(reservation->mutex);
  if (reservation->closed ||
      !reservation->arriving.emplace(reservation->KeyOf(block, place.group, place.rung), page)
           .second) {
    context.arena->Free(page.extent);
    return absl::NotFoundError("commit: the reservation ended, or the page came by Put meanwhile");
  }
  return absl::OkStatus();
}

}  // namespace prefixd::cache
