// Commit: publishes the blocks of a reservation, parents first, and declares where sequences end.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "cache/verbs/lease_answer.h"
#include "cache/verbs/publish.h"
#include "cache/verbs/staged.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

// How many blocks of the plan `tokens` covers; InvalidArgument when it cuts one.
absl::StatusOr<size_t> BlocksUpTo(const std::vector<block::BlockPlan>& blocks, uint32_t tokens) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].first_token + blocks[i].tokens == tokens) return i + 1;
  }
  const block::BlockPlan& last = blocks.back();
  return absl::InvalidArgumentError(absl::StrCat(
      "commit: ", tokens, " tokens is neither a block border of the reservation nor its end, ",
      last.first_token + last.tokens));
}

absl::Status CheckEnds(const CommitRequest& request) {
  if (request.ends.size() > kMaxEnds) {
    return absl::InvalidArgumentError(
        absl::StrCat("commit: ", request.ends.size(), " ends, limit ", kMaxEnds));
  }
  for (uint32_t end : request.ends) {
    if (end == 0 || end > request.tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("commit: an end at token ", end, ", ends stand in 1..", request.tokens));
    }
  }
  return absl::OkStatus();
}

absl::Status GaveUp(const Patience& patience, uint32_t published) {
  const std::string how_far =
      absl::StrCat("; the blocks before token ", published, " are published");
  if (patience.gave_up()) return absl::CancelledError("commit: the caller gave up" + how_far);
  return absl::DeadlineExceededError("commit: the deadline is over" + how_far);
}

std::vector<StagedPlace> InBlockOrder(const CommitRequest& request) {
  std::vector<StagedPlace> places = request.staged;
  std::ranges::stable_sort(places, {}, &StagedPlace::first_token);
  return places;
}

// Commits one block. True: go on with the next one.
absl::StatusOr<bool> CommitBlock(Context& context, Room& room, Reservation* reservation,
                                 size_t block_index, std::span<const StagedPlace> places,
                                 const ram::Staging* from, const Patience& patience,
                                 block::CommitAnswer* answer) {
  const block::BlockPlan& block = reservation->reserved.plan.blocks[block_index];
  absl::Status why;
  for (const StagedPlace& place : places) {
    if (why.ok()) why = TakeStaged(context, room, reservation, place, *from, patience);
  }
  room.MakeIndexRoom(patience, &reservation->cancelled);
  base::MutexLock lock(reservation->mutex);
  if (reservation->closed) return absl::NotFoundError("commit: the reservation ended");
  if (reservation->done != block_index) return true;  // another commit was faster
  const auto first = reservation->arriving.lower_bound({block_index, 0, 0});
  const bool sent =
      first != reservation->arriving.end() && std::get<0>(first->first) == block_index;
  if (block.state == block::BlockState::kPresent && !sent && why.ok()) {
    ++reservation->done;
    return true;
  }
  block::BlockResult result;
  result.first_token = block.first_token;
  result.result = block::StoreResult::kRefused;
  if (why.ok()) {
    const absl::StatusOr<block::StoreResult> stored =
        PublishBlock(context, reservation, block_index);
    why = stored.status();
    if (stored.ok()) result.result = *stored;
  }
  const bool refused = result.result == block::StoreResult::kRefused;
  if (refused) result.reason = why.ok() ? "the index is full" : std::string(why.message());
  if (result.result == block::StoreResult::kStored) answer->stored_tokens += block.tokens;
  if (result.result == block::StoreResult::kDuplicate) answer->duplicate_tokens += block.tokens;
  answer->blocks.push_back(std::move(result));
  ++reservation->done;
  return !refused;
}

void DeclareEnds(Context& context, const CommitRequest& request) {
  std::vector<uint32_t> ends = request.ends;
  if (request.sequence_end) ends.push_back(request.tokens);
  for (uint32_t end : ends) {
    if (absl::Status status = context.index->AddEnd(request.reservation, end); !status.ok()) {
      context.counters.Add("ends.refused");  // evicted since, and the end with its block
    }
  }
}

// The writer drops its own copies and reads the published ones.
absl::Status LeaseToWriter(Context& context, Sessions& sessions, Loader& loader, Watcher& watcher,
                           const Reservation& reservation, uint32_t from_token, uint32_t tokens,
                           block::CommitAnswer* answer) {
  index::Acquired held =
      context.index->LeasePublished(reservation.reserved.plan.reservation, from_token, tokens,
                                    reservation.session->slot_number());
  if (!held.lease) return absl::OkStatus();
  LeaseAnswer lease(&context, reservation.session, reservation.space, std::move(held));
  PREFIXD_RETURN_IF_ERROR(lease.MakeReadable(loader, 0, std::chrono::steady_clock::now()));
  PREFIXD_ASSIGN_OR_RETURN(Acquired acquired,
                           std::move(lease).Register(sessions, watcher, loader.model, 0));
  answer->lease = acquired.lease;
  answer->pages = std::move(acquired.pages);
  answer->first_block = acquired.first_block;
  return absl::OkStatus();
}

void OfferToOthers(Writer& writer, const Reservation& reservation, uint32_t tokens) {
  if (!writer.Wants(*reservation.space)) return;
  writer.Take({.space = reservation.space,
               .tokens = {reservation.tokens.begin(), reservation.tokens.begin() + tokens},
               .content = block::CutContent(reservation.content, 0, tokens)});
}

// The blocks are already published; a disk failure only lowers the reported durability.
void Secure(Context& context, Spiller& spiller, const std::vector<index::BlockRef>& blocks,
            const Patience& patience, block::CommitAnswer* answer) {
  const int64_t started = context.Now();
  const bool secured = spiller.WaitForSsd(blocks, patience);
  if (secured) answer->durability = block::Durability::kSsd;
  context.counters.Add(secured ? "commits.on_ssd" : "commits.not_on_ssd");
  context.counters.Time("commit.on_ssd", static_cast<uint64_t>(context.Now() - started));
}

}  // namespace

absl::StatusOr<block::CommitAnswer> Commit(Context& context, Tables& tables, Room& room,
                                           Loader& loader, Watcher& watcher, Spiller& spiller,
                                           Writer& writer, block::SessionId session,
                                           const CommitRequest& request, const Patience& patience) {
  Sessions& sessions = tables.sessions;
  PREFIXD_ASSIGN_OR_RETURN(const ReservationPtr reservation,
                           sessions.FindReservation(session, request.reservation));
  const std::vector<block::BlockPlan>& blocks = reservation->reserved.plan.blocks;
  PREFIXD_ASSIGN_OR_RETURN(const size_t target, BlocksUpTo(blocks, request.tokens));
  PREFIXD_RETURN_IF_ERROR(CheckEnds(request));
  const std::shared_ptr<const ram::Staging> staging = sessions.StagingOf(*reservation->session);
  if (absl::Status status =
          CheckStaged(reservation.get(), request, staging == nullptr ? 0 : staging->bytes());
      !status.ok()) {
    context.counters.Add("refused.bad_page");
    return status;
  }
  const Patience waiting = patience.Before(std::chrono::steady_clock::now() + kCommitPatience);
  const std::vector<StagedPlace> places = InBlockOrder(request);
  const size_t first = [&reservation] {
    base::MutexLock lock(reservation->mutex);
    return reservation->done;
  }();
  block::CommitAnswer answer;
  bool going_on = true;
  auto staged = places.begin();
  for (size_t i = first; i < target && going_on; ++i) {
    if (patience.over()) {
      sessions.announcements.Add();
      return GaveUp(patience, blocks[i].first_token);
    }
    const auto begin = staged;
    while (staged != places.end() && staged->first_token == blocks[i].first_token) ++staged;
    PREFIXD_ASSIGN_OR_RETURN(
        going_on, CommitBlock(context, room, reservation.get(), i, {begin, staged}, staging.get(),
                              waiting, &answer));
  }
  context.FreeTaken();
  sessions.announcements.Add();
  if (going_on) DeclareEnds(context, request);
  if (going_on) OfferToOthers(writer, *reservation, request.tokens);
  context.counters.AddAll({{"commits", 1},
                           {"tokens.stored", answer.stored_tokens},
                           {"tokens.duplicate", answer.duplicate_tokens},
                           {"refused.commit", uint64_t{!going_on}}});
  absl::Status leased;
  if (request.lease && first < target) {
    leased = LeaseToWriter(context, sessions, loader, watcher, *reservation,
                           blocks[first].first_token, request.tokens, &answer);
  }
  std::vector<index::BlockRef> stored;
  if (going_on && request.durability == block::Durability::kSsd && context.store != nullptr) {
    PREFIXD_ASSIGN_OR_RETURN(stored,
                             context.index->StoredBlocks(request.reservation, request.tokens));
  }
  if (!going_on || target == blocks.size()) sessions.DropReservation(request.reservation);
  room.KeepLimits();
  room.KeepCeiling(reservation->space->handle);
  if (!stored.empty()) Secure(context, spiller, stored, waiting, &answer);
  PREFIXD_RETURN_IF_ERROR(leased);
  return answer;
}

}  // namespace prefixd::cache::verbs
