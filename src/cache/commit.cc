// Commit: publishes the blocks of a reservation, parents first, and declares where sequences end.
#include <algorithm>

#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

constexpr std::chrono::seconds kIndexPatience(5);  // of one commit

block::PageName NameOf(const Reservation& reservation, size_t block_index, uint32_t group,
                       uint32_t rung) {
  return {.space = reservation.space->id,
          .block = reservation.reserved.hashes[block_index],
          .group = static_cast<uint16_t>(group),
          .part = 0,
          .rung = static_cast<uint16_t>(rung),
          .tokens = reservation.reserved.plan.blocks[block_index].tokens};
}

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

// The staged pages of a block, checked and ready to publish. InvalidArgument when one is missing or
// not whole.
absl::StatusOr<std::vector<index::NewPage>> PagesOf(
    const Reservation& reservation, size_t block_index,
    const std::map<std::pair<size_t, uint32_t>, StagedPage>& staged, const ram::Arena& arena) {
  std::vector<index::NewPage> pages;
  for (uint32_t group : reservation.groups) {
    auto found = staged.find({block_index, group});
    const bool wanted =
        reservation.reserved.plan.blocks[block_index].rungs[group] != block::kNoLimit;
    if (!wanted && found == staged.end()) continue;
    if (found == staged.end() || found->second.received != found->second.page_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("commit: block ", block_index, " has no whole page of group ", group));
    }
    const StagedPage& page = found->second;
    const block::PageName name = NameOf(reservation, block_index, group, page.rung);
    pages.push_back({.group = group,
                     .rung = page.rung,
                     .extent = page.extent,
                     .check = block::PageCheck(name, {arena.data(page.extent), page.page_bytes}),
                     .page_bytes = page.page_bytes,
                     .payload_bytes = block::LayoutOfPage(reservation.space->identity.groups[group],
                                                          page.rung, name.tokens)
                                          .payload_bytes});
  }
  return pages;
}

}  // namespace

// An index near its memory limit forgets cold blocks first: those on SSD only, then those in RAM.
void Core::MakeIndexRoom(base::Deadline deadline) {
  const uint64_t limit = shares.index_bytes / 16 * 15;
  bool more = index->Counts().memory_bytes > limit;
  if (more) counters.Add("index.trimmed");
  while (more) {
    index->TrimMemory(limit);
    uint64_t evicted_bytes = 0;
    more = index->Counts().memory_bytes > limit &&
           (EvictSomething(0, &evicted_bytes) || WaitForRoom(deadline));
  }
}

absl::StatusOr<block::CommitAnswer> Cache::Commit(block::SessionId session,
                                                  const CommitRequest& request) {
  PREFIXD_ASSIGN_OR_RETURN(const ReservationPtr reservation,
                           core_->FindReservation(session, request.reservation));
  const std::vector<block::BlockPlan>& blocks = reservation->reserved.plan.blocks;
  PREFIXD_ASSIGN_OR_RETURN(const size_t target, BlocksUpTo(blocks, request.tokens));
  for (uint32_t end : request.ends) {
    if (end == 0 || end > request.tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("commit: an end at token ", end, ", ends stand in 1..", request.tokens));
    }
  }
  const base::Deadline deadline = std::chrono::steady_clock::now() + kIndexPatience;
  block::CommitAnswer answer;
  bool refused = false;
  bool complete = false;
  {
    base::MutexLock lock(reservation->mutex);
    if (reservation->closed) return absl::NotFoundError("commit: the reservation ended");
    for (; reservation->done < target && !refused; ++reservation->done) {
      const size_t i = reservation->done;
      const auto first = reservation->staged.lower_bound({i, 0});
      const bool sent = first != reservation->staged.end() && first->first.first == i;
      if (blocks[i].state == block::BlockState::kPresent && !sent) continue;
      block::BlockResult result;
      result.first_token = blocks[i].first_token;
      absl::StatusOr<std::vector<index::NewPage>> pages =
          PagesOf(*reservation, i, reservation->staged, *core_->arena);
      absl::StatusOr<block::StoreResult> stored = block::StoreResult::kRefused;
      absl::Status why = pages.status();
      if (pages.ok()) {
        core_->MakeIndexRoom(deadline);
        stored = core_->index->Publish(request.reservation, static_cast<uint32_t>(i), *pages);
        if (stored.ok()) {  // the extents are the index's now; on an error they stay ours
          for (uint32_t group : reservation->groups) reservation->staged.erase({i, group});
        }
        why = stored.status();
      }
      result.result = stored.ok() ? *stored : block::StoreResult::kRefused;
      refused = result.result == block::StoreResult::kRefused;
      if (refused) result.reason = why.ok() ? "the index is full" : std::string(why.message());
      if (result.result == block::StoreResult::kStored) answer.stored_tokens += blocks[i].tokens;
      if (result.result == block::StoreResult::kDuplicate)
        answer.duplicate_tokens += blocks[i].tokens;
      answer.blocks.push_back(std::move(result));
      if (refused) break;
    }
    complete = reservation->done == blocks.size();
  }
  core_->FreeTaken();
  if (!refused) {
    std::vector<uint32_t> ends = request.ends;
    if (request.sequence_end) ends.push_back(request.tokens);
    for (uint32_t end : ends) {
      if (absl::Status status = core_->index->AddEnd(request.reservation, end); !status.ok()) {
        core_->counters.Add("ends.refused");  // evicted since: the end went with its block
      }
    }
  }
  core_->counters.Add("commits");
  core_->counters.Add("tokens.stored", answer.stored_tokens);
  core_->counters.Add("tokens.duplicate", answer.duplicate_tokens);
  if (refused) core_->counters.Add("refused.commit");
  if (complete || refused) core_->DropReservation(request.reservation);
  return answer;
}

}  // namespace prefixd::cache
