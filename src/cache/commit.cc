// Commit: publishes the blocks of a reservation, parents first, and declares where sequences end.
#include <algorithm>

#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
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

}  // namespace

block::PageName Reservation::NameOf(size_t block_index, uint32_t group, uint32_t rung) const {
  const Recorded recorded = RecordedOf(block_index, group, rung);
  return {.space = space->id,
          .block = recorded.name.hash,
          .group = static_cast<uint16_t>(group),
          .part = 0,
          .rung = static_cast<uint16_t>(rung),
          .tokens = recorded.tokens};
}

Reservation::Recorded Reservation::RecordedOf(size_t block_index, uint32_t group,
                                              uint32_t rung) const {
  const block::BlockPlan& plan = reserved.plan.blocks[block_index];
  Recorded recorded{
      .name = reserved.names[block_index], .first_token = plan.first_token, .tokens = plan.tokens};
  if (!space->IsState(group) || rung == plan.tokens) return recorded;
  recorded.tokens = rung;
  const std::vector<block::ContentKey> keys =
      block::CutContent(content, plan.first_token, plan.first_token + rung);
  const block::SequenceView prefix{std::span(tokens).subspan(plan.first_token, rung), keys};
  recorded.name.hash = space->hasher.Hash(recorded.name.parent, prefix);
  return recorded;
}

// An index near its memory limit forgets the coldest blocks, whether they stand in RAM or on SSD
// alone: where pages are so small that RAM holds more blocks than the index does, what is on SSD
// alone would else be forgotten however often it is used, and so would what is clean before what is
// dirty. More than one block's worth at once: it costs a walk over all of them.
void Core::MakeIndexRoom(const Patience& patience, const std::atomic<bool>* cancelled) {
  constexpr int kEvictedAtOnce = 256;  // blocks
  constexpr int kVainRounds = 3;       // of the spiller, before order counts no more
  const uint64_t limit = index_share_bytes / 16 * 15, target = index_share_bytes / 16 * 14;
  const auto taken = [this] { return index->Counts().memory_bytes; };
  if (taken() <= limit) return;
  counters.Add("index.trimmed");
  for (int vain_rounds = 0;;) {
    const index::PrefixIndex::GiveUp what = vain_rounds < kVainRounds
                                                ? index::PrefixIndex::GiveUp::kInOrder
                                                : index::PrefixIndex::GiveUp::kWhatMayGo;
    index->TrimMemory(target, what);
    if (taken() <= target) return;
    uint64_t evicted_bytes = 0;
    int evicted = 0;
    while (evicted < kEvictedAtOnce && EvictColdest(&evicted_bytes, what)) ++evicted;
    if (evicted > 0) continue;
    if (taken() <= limit) return;
    if (WaitForRoom(patience, cancelled, &vain_rounds)) continue;
    if (what == index::PrefixIndex::GiveUp::kWhatMayGo) return;
    vain_rounds = kVainRounds;
  }
}

// The pages of a block, checked and ready to publish. InvalidArgument when one is missing or not
// whole. Of sliding groups and snapshots those that came.
absl::StatusOr<std::vector<index::NewPage>> Core::PagesOf(Reservation* reservation,
                                                          size_t block_index) const {
  std::vector<index::NewPage> pages;
  const SpaceInfo& space = *reservation->space;
  const block::BlockPlan& block = reservation->reserved.plan.blocks[block_index];
  for (uint32_t group : reservation->groups) {
    auto found = reservation->arriving.lower_bound({block_index, group, 0});
    const auto is_ours = [&] {
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
                               PageOf(*reservation, block_index, group, &found->second));
      pages.push_back(page);
    }
  }
  return pages;
}

absl::StatusOr<index::NewPage> Core::PageOf(const Reservation& reservation, size_t block_index,
                                            uint32_t group, ArrivingPage* page) const {
  if (page->received != page->page_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("commit: block ", block_index, " of group ",
                                                   group, " has a snapshot that is not whole, at ",
                                                   page->rung));
  }
  if (page->check == 0) {
    page->check = block::PageCheck(reservation.NameOf(block_index, group, page->rung),
                                   {arena->data(page->extent), page->page_bytes});
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
                        .marks = arena->marks(page->extent)};
}

// Into the arena's file, where the next daemon finds them if this one dies.
void Core::WriteRecords(const Reservation& reservation, size_t block_index,
                        const index::Serials& serials, const std::vector<index::NewPage>& pages) {
  const block::BlockPlan& plan = reservation.reserved.plan.blocks[block_index];
  for (const index::NewPage& page : pages) {
    const Reservation::Recorded block = reservation.RecordedOf(block_index, page.group, page.rung);
    const std::vector<block::ContentKey> content =
        block::CutContent(reservation.content, block.first_token, block.first_token + block.tokens);
    const std::span<const block::Token> tokens =
        std::span(reservation.tokens).subspan(block.first_token, block.tokens);
    arena->Publish(page.extent, {.name = reservation.NameOf(block_index, page.group, page.rung),
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
                                 .last_use = options.clock->UnixMicros()});
  }
}

// Records first: what is in the tree is found after a crash too. Others may store its parent or the
// block itself meanwhile, under serials of their own: then once more.
absl::StatusOr<block::StoreResult> Core::PublishPages(const Reservation& reservation,
                                                      size_t block_index,
                                                      const std::vector<index::NewPage>& pages) {
  const block::ReservationId id = reservation.reserved.plan.reservation;
  const auto block = static_cast<uint32_t>(block_index);
  if (!arena->shared()) return index->Publish(id, block, pages);
  while (true) {
    PREFIXD_ASSIGN_OR_RETURN(const index::Serials serials, index->SerialsFor(id, block));
    WriteRecords(reservation, block_index, serials, pages);
    absl::StatusOr<block::StoreResult> stored = index->Publish(id, block, pages, serials);
    if (!absl::IsAborted(stored.status())) return stored;
  }
}

absl::StatusOr<block::StoreResult> Core::PublishBlock(Reservation* reservation,
                                                      size_t block_index) {
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<index::NewPage> pages,
                           PagesOf(reservation, block_index));
  PREFIXD_ASSIGN_OR_RETURN(const block::StoreResult stored,
                           PublishPages(*reservation, block_index, pages));
  if (stored == block::StoreResult::kStored) {
    for (const index::NewPage& page : pages) asked_bytes += page.page_bytes;
  }
  // The extents are the index's now; on an error they stayed ours.
  reservation->arriving.erase(reservation->arriving.lower_bound({block_index, 0, 0}),
                              reservation->arriving.lower_bound({block_index + 1, 0, 0}));
  return stored;
}

// One block: true to go on with the next one.
absl::StatusOr<bool> Core::CommitBlock(Reservation* reservation, size_t block_index,
                                       std::span<const StagedPlace> places,
                                       const ram::Staging* from, const Patience& patience,
                                       block::CommitAnswer* answer) {
  const block::BlockPlan& block = reservation->reserved.plan.blocks[block_index];
  absl::Status why;
  for (const StagedPlace& place : places) {
    if (why.ok()) why = TakeStaged(reservation, place, *from, patience);
  }
  MakeIndexRoom(patience, &reservation->cancelled);
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
    const absl::StatusOr<block::StoreResult> stored = PublishBlock(reservation, block_index);
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

void Core::DeclareEnds(const CommitRequest& request) {
  std::vector<uint32_t> ends = request.ends;
  if (request.sequence_end) ends.push_back(request.tokens);
  for (uint32_t end : ends) {
    if (absl::Status status = index->AddEnd(request.reservation, end); !status.ok()) {
      counters.Add("ends.refused");  // evicted since: the end went with its block
    }
  }
}

// The writer drops its own copies and reads the published ones.
absl::Status Core::LeaseToWriter(const Reservation& reservation, uint32_t from_token,
                                 uint32_t tokens, block::CommitAnswer* answer) {
  index::Acquired held = index->LeasePublished(reservation.reserved.plan.reservation, from_token,
                                               tokens, reservation.session->slot_number());
  if (!held.lease) return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(Acquired acquired,
                           Answer(reservation.session, reservation.space, std::move(held), {}, 0,
                                  nullptr, std::chrono::steady_clock::now()));
  answer->lease = acquired.lease;
  answer->pages = std::move(acquired.pages);
  answer->first_block = acquired.first_block;
  return absl::OkStatus();
}

// Stored it is, whatever the disk says.
void Core::Secure(const std::vector<index::BlockRef>& blocks, const Patience& patience,
                  block::CommitAnswer* answer) {
  const int64_t started = Now();
  const bool secured = WaitForSsd(blocks, patience);
  if (secured) answer->durability = block::Durability::kSsd;
  counters.Add(secured ? "commits.on_ssd" : "commits.not_on_ssd");
  counters.Time("commit.on_ssd", static_cast<uint64_t>(Now() - started));
}

absl::StatusOr<block::CommitAnswer> Cache::Commit(block::SessionId session,
                                                  const CommitRequest& request,
                                                  const Patience& patience) {
  PREFIXD_ASSIGN_OR_RETURN(const ReservationPtr reservation,
                           core_->FindReservation(session, request.reservation));
  const std::vector<block::BlockPlan>& blocks = reservation->reserved.plan.blocks;
  PREFIXD_ASSIGN_OR_RETURN(const size_t target, BlocksUpTo(blocks, request.tokens));
  PREFIXD_RETURN_IF_ERROR(CheckEnds(request));
  std::shared_ptr<const ram::Staging> staging;
  {
    base::MutexLock lock(core_->mutex);
    staging = reservation->session->staging;
  }
  if (absl::Status status =
          core_->CheckStaged(reservation.get(), request, staging == nullptr ? 0 : staging->bytes());
      !status.ok()) {
    core_->counters.Add("refused.bad_page");
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
      core_->Announce();
      return GaveUp(patience, blocks[i].first_token);
    }
    const auto begin = staged;
    while (staged != places.end() && staged->first_token == blocks[i].first_token) ++staged;
    PREFIXD_ASSIGN_OR_RETURN(going_on, core_->CommitBlock(reservation.get(), i, {begin, staged},
                                                          staging.get(), waiting, &answer));
  }
  core_->FreeTaken();
  core_->Announce();
  if (going_on) core_->DeclareEnds(request);
  core_->counters.AddAll({{"commits", 1},
                          {"tokens.stored", answer.stored_tokens},
                          {"tokens.duplicate", answer.duplicate_tokens},
                          {"refused.commit", uint64_t{!going_on}}});
  absl::Status leased;
  if (request.lease && first < target) {
    leased = core_->LeaseToWriter(*reservation, blocks[first].first_token, request.tokens, &answer);
  }
  std::vector<index::BlockRef> stored;
  if (going_on && request.durability == block::Durability::kSsd && core_->store != nullptr) {
    PREFIXD_ASSIGN_OR_RETURN(stored,
                             core_->index->StoredBlocks(request.reservation, request.tokens));
  }
  if (!going_on || target == blocks.size()) core_->DropReservation(request.reservation);
  core_->KeepLimits();
  core_->KeepCeiling(reservation->space->handle);
  if (!stored.empty()) core_->Secure(stored, waiting, &answer);
  PREFIXD_RETURN_IF_ERROR(leased);
  return answer;
}

}  // namespace prefixd::cache
