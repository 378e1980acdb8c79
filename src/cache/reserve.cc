// Reserve: what is missing of a sequence, announced before its bytes travel. PutPage: bytes into
// extents of the reservation.
#include <algorithm>
#include <thread>

#include "base/checksum.h"
#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"
#include "cache/request.h"

namespace prefixd::cache {
namespace {

// Of the arena one session alone may fill seven eighths with what it has not committed: a sequence
// comes whole before it is.
constexpr uint64_t kArrivingWeight = 7;

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
  if (bytes == 0 || bytes > kMaxPiece || piece.offset > wants || bytes > wants - piece.offset) {
    return absl::InvalidArgumentError(absl::StrCat("put: a piece of ", bytes, " bytes at offset ",
                                                   piece.offset, ", a page of ", wants,
                                                   " travels in pieces of 1 to ", kMaxPiece));
  }
  const block::PageName name = reservation.NameOf(*block_index, piece.group, piece.rung);
  if (piece.sum_seed != 0 && piece.sum_seed != block::CheckSeed(name)) {
    return absl::InvalidArgumentError(absl::StrCat("put: block ", *block_index, " of group ",
                                                   piece.group, " comes with sum_seed ",
                                                   piece.sum_seed, ", which is another page's"));
  }
  return absl::OkStatus();
}

// Behind what arrived before; false when the sum that came with it is another. The check of the
// page is made on the way, of what is stored: at Commit all of it would come from memory again.
// Where the sender has the page's seed its sum is that check, else it is one more.
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

// Of each page that is to be written, in the rung that the plan wants.
void AddSeeds(const Reservation& reservation, block::ReservePlan* plan) {
  for (size_t i = 0; i < plan->blocks.size(); ++i) {
    block::BlockPlan& block = plan->blocks[i];
    block.seeds.resize(block.rungs.size());
    for (uint32_t group = 0; group < block.rungs.size(); ++group) {
      if (block.rungs[group] == block::kNoLimit) continue;
      block.seeds[group] = block::CheckSeed(reservation.NameOf(i, group, block.rungs[group]));
    }
  }
}

absl::Status TooManyAnnounced(const Core& core, const Session& session, size_t more) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "reserve: ", core.announced_bytes.load() / sizeof(block::Token), " tokens of ",
      core.in_flight_share_bytes.load() / 2 / sizeof(block::Token), " are announced, ",
      session.announced_bytes.load() / sizeof(block::Token), " of them by this session; with ",
      more, " more it would have more than it leaves to others"));
}

absl::Status CheckTurnEnds(const ReserveRequest& request) {
  if (request.turn_ends.size() > kMaxEnds) {
    return absl::InvalidArgumentError(
        absl::StrCat("reserve: ", request.turn_ends.size(), " turn ends, limit ", kMaxEnds));
  }
  for (const uint32_t end : request.turn_ends) {
    if (end >= 1 && end <= request.tokens.size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("reserve: a turn end at token ", end,
                                                   ", turns end in 1..", request.tokens.size()));
  }
  return absl::OkStatus();
}

// Of one chain, for positions that are only likely to be asked for: so many that all its snapshots
// take an eighth of what its keys and values do.
uint32_t WorthwhileSnapshots(const SpaceInfo& space, const std::vector<uint32_t>& groups,
                             size_t tokens) {
  uint64_t state_bytes = 0, token_bytes = 0;
  for (const uint32_t g : groups) {
    const block::LayerGroup& group = space.identity.groups[g];
    if (space.IsState(g)) {
      state_bytes += group.state_bytes;
    } else {
      token_bytes += group.layers.size() * block::TokenBytesPerLayer(group, 0);
    }
  }
  if (state_bytes == 0 || token_bytes == 0) return block::kMaxSnapshots;
  return static_cast<uint32_t>(
      std::min<uint64_t>(block::kMaxSnapshots, tokens * token_bytes / 8 / state_bytes));
}

}  // namespace

absl::Status Reservation::CheckRung(size_t block_index, uint32_t group, uint32_t rung) const {
  const uint32_t tokens = reserved.plan.blocks[block_index].tokens;
  const size_t rungs = space->identity.groups[group].ladder.size();
  if (space->IsState(group) ? rung >= 1 && rung <= tokens : rung < rungs) return absl::OkStatus();
  if (space->IsState(group)) {
    return absl::InvalidArgumentError(absl::StrCat("a snapshot of group ", group, " at offset ",
                                                   rung, " of a block of ", tokens, " tokens"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rung ", rung, " of group ", group, ", its ladder has ", rungs));
}

absl::StatusOr<block::ReservePlan> Cache::Reserve(block::SessionId id,
                                                  const ReserveRequest& request) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, core_->FindSession(id, "reserve"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, core_->FindSpace(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.writable));
  auto reservation = std::make_shared<Reservation>();
  reservation->session = session;
  reservation->space = space;
  reservation->groups = request.groups;
  if (request.groups.empty()) {
    for (uint32_t g = 0; g < space->identity.groups.size(); ++g) reservation->groups.push_back(g);
  }
  core_->EndIdleReservations();
  reservation->used_us = core_->Now();
  reservation->announced =
      Charge::Take(request.tokens.size() * sizeof(block::Token), core_->in_flight_share_bytes / 2,
                   1, {&session->announced_bytes, &core_->announced_bytes}, session);
  if (reservation->announced == nullptr) {
    core_->counters.Add("refused.announced");
    return TooManyAnnounced(*core_, *session, request.tokens.size());
  }
  reservation->tokens = request.tokens;
  reservation->content = request.content;
  PREFIXD_RETURN_IF_ERROR(CheckTurnEnds(request));
  const index::SnapshotWish wish{
      .turn_ends = request.turn_ends,
      .max_snapshots = WorthwhileSnapshots(*space, reservation->groups, request.tokens.size())};
  PREFIXD_ASSIGN_OR_RETURN(
      reservation->reserved,
      core_->index->Reserve(
          request.space, {request.tokens, request.content},
          {.groups = request.groups, .rungs = request.writable, .coarser = core_->AdvisedSteps()},
          id, wish));
  block::ReservePlan plan = reservation->reserved.plan;
  core_->CountAdvised(plan, request.writable);
  if (request.seeds) AddSeeds(*reservation, &plan);
  {
    base::MutexLock lock(core_->mutex);
    if (session->attached) {
      session->reservations.insert(plan.reservation);
      core_->reservations[plan.reservation] = std::move(reservation);
      return plan;
    }
  }
  core_->index->CloseReservation(plan.reservation).IgnoreError();
  return absl::NotFoundError("reserve: the session ended");
}

absl::Status Cache::PutPage(block::SessionId session, block::ReservationId id,
                            const PagePiece& piece, const Patience& patience) {
  PREFIXD_ASSIGN_OR_RETURN(const ReservationPtr reservation, core_->FindReservation(session, id));
  const std::span<const std::span<const std::byte>> runs =
      piece.runs.empty() ? std::span(&piece.data, 1) : piece.runs;
  const uint64_t bytes = BytesIn(runs);
  size_t block_index = 0;
  if (absl::Status status = CheckPiece(*reservation, piece, bytes, &block_index); !status.ok()) {
    core_->counters.Add("refused.bad_page");
    return status;
  }
  InFlight in_flight(&core_->in_flight_bytes, bytes);
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
    const uint64_t extent_bytes = core_->arena->ExtentBytes(piece.page_bytes, full);
    PREFIXD_RETURN_IF_ERROR(
        core_->ChargeArriving(reservation.get(), extent_bytes, patience, &fresh));
    PREFIXD_ASSIGN_OR_RETURN(
        extent, core_->AllocateExtent(piece.page_bytes, full, patience, &reservation->cancelled));
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
    core_->arena->Free(extent);  // too late, or another stream of this reservation was first
  PREFIXD_RETURN_IF_ERROR(usable);
  if (page == reservation->arriving.end() || page->second.rung != piece.rung ||
      page->second.received != piece.offset || page->second.sum == nullptr) {
    core_->counters.Add("refused.bad_page");
    return absl::InvalidArgumentError(absl::StrCat("put: a piece at offset ", piece.offset,
                                                   " of block ", block_index, " of group ",
                                                   piece.group, " is out of order"));
  }
  if (!TakeBytes(piece, runs, core_->arena->data(page->second.extent), &page->second)) {
    core_->arena->Free(page->second.extent);
    reservation->arriving.erase(page);
    core_->counters.Add("refused.bad_page");
    return absl::InvalidArgumentError(absl::StrCat("put: block ", block_index, " of group ",
                                                   piece.group,
                                                   " arrived damaged, its XXH3 differs"));
  }
  core_->counters.Add("bytes.received", bytes);
  return absl::OkStatus();
}

void Core::Announce() {
  {
    base::MutexLock lock(announce_mutex);
    ++announcements;
  }
  announced.NotifyAll();
}

absl::StatusOr<ReservationPtr> Core::FindReservation(block::SessionId session,
                                                     block::ReservationId id) const {
  base::MutexLock lock(mutex);
  auto found = reservations.find(id);
  if (found == reservations.end() || found->second->session->id != session ||
      !found->second->session->attached) {
    return absl::NotFoundError(
        absl::StrCat("reservation: ", id.value, " is not held by this session"));
  }
  found->second->used_us = Now();
  return found->second;
}

absl::Status Cache::CheckReservation(block::SessionId session, block::ReservationId id) const {
  return core_->FindReservation(session, id).status();
}

// Two shares: of the arena, for what is not committed; and a smaller one for pages that have begun
// to arrive, since a byte is enough to begin one.
absl::Status Core::ChargeArriving(Reservation* reservation, uint64_t bytes,
                                  const Patience& patience, ArrivingPage* page) {
  Session& session = *reservation->session;
  const auto own_bytes = [&] {
    base::MutexLock lock(reservation->mutex);
    uint64_t own = 0;
    for (const auto& [key, known] : reservation->arriving)
      own += known.charge ? known.charge->bytes() : 0;
    return own;
  };
  for (;;) {
    const uint64_t arena_bytes = arena->stats().capacity_bytes;
    page->charge = Charge::Take(bytes, arena_bytes, kArrivingWeight,
                                {&session.arriving_bytes, &arriving_bytes}, reservation->session);
    page->partial = Charge::Take(bytes, std::max(arena_bytes / 4, 4 * bytes), 1,
                                 {&session.partial_bytes, &partial_bytes}, reservation->session);
    if (page->charge != nullptr && page->partial != nullptr) return absl::OkStatus();
    page->charge = page->partial = nullptr;
    // What makes room is a commit of another reservation, of this session or of another one.
    const uint64_t own = own_bytes();
    const bool may_fit = own + bytes <= arena_bytes / (kArrivingWeight + 1) * kArrivingWeight &&
                         own < arriving_bytes;
    if (may_fit && !patience.over() && !reservation->cancelled) {
      std::this_thread::sleep_until(patience.next_look());
      continue;
    }
    counters.Add("refused.arriving");
    return absl::ResourceExhaustedError(absl::StrCat(
        "put: pages of ", base::FormatBytes(session.arriving_bytes),
        " of this session are not committed, ", base::FormatBytes(session.partial_bytes),
        " of them not whole; of all sessions ", base::FormatBytes(arriving_bytes), " and ",
        base::FormatBytes(partial_bytes), " in a RAM tier of ", base::FormatBytes(arena_bytes),
        "; another would be more than its share: end pages that were begun, commit some"));
  }
}

void Core::EndIdleReservations() {
  constexpr int64_t kLookEvery = std::chrono::microseconds(kIdleReservation).count() / 60;
  const int64_t now = Now();
  int64_t due = next_idle_look_us;
  if (now < due || !next_idle_look_us.compare_exchange_strong(due, now + kLookEvery)) return;
  std::vector<block::ReservationId> idle;
  {
    base::MutexLock lock(mutex);
    for (const auto& [id, reservation] : reservations) {
      if (now - reservation->used_us >= std::chrono::microseconds(kIdleReservation).count())
        idle.push_back(id);
    }
  }
  for (const block::ReservationId id : idle) DropReservation(id);
  if (!idle.empty()) counters.Add("reservations.idle_ended", idle.size());
}

void Core::DropReservation(block::ReservationId id) {
  ReservationPtr reservation;
  {
    base::MutexLock lock(mutex);
    auto found = reservations.find(id);
    if (found == reservations.end()) return;
    reservation = std::move(found->second);
    reservations.erase(found);
    reservation->session->reservations.erase(id);
  }
  reservation->cancelled = true;
  {
    base::MutexLock lock(reservation->mutex);
    reservation->closed = true;
    for (const auto& [key, page] : reservation->arriving) arena->Free(page.extent);
    reservation->arriving.clear();
  }
  index->CloseReservation(id).IgnoreError();  // known: the table had it
  FreeTaken();
  Announce();
}

absl::Status Cache::Abandon(block::SessionId session, block::ReservationId id) {
  PREFIXD_RETURN_IF_ERROR(core_->FindReservation(session, id).status());
  core_->DropReservation(id);
  core_->counters.Add("reservations.abandoned");
  return absl::OkStatus();
}

}  // namespace prefixd::cache
