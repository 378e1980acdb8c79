// The table of reservations, what their pages are named, and what a session may have of the budgets
// for tokens that are announced and pages that arrive.
#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "base/status.h"
#include "cache/tables/sessions.h"

namespace prefixd::cache {
namespace {

// One session alone may fill seven eighths of the arena with what it has not committed: a sequence
// comes whole before it is committed.
constexpr uint64_t kArrivingWeight = 7;
constexpr int64_t kIdleMicros = std::chrono::microseconds(kIdleReservation).count();

uint64_t ArrivingBytes(Reservation* reservation) {
  base::MutexLock lock(reservation->mutex);
  uint64_t bytes = 0;
  for (const auto& [key, page] : reservation->arriving) {
    bytes += page.charge ? page.charge->bytes() : 0;
  }
  return bytes;
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

absl::Status Sessions::AddReservation(ReservationPtr reservation) {
  const block::ReservationId id = reservation->reserved.plan.reservation;
  {
    base::MutexLock lock(mutex_);
    if (reservation->session->attached) {
      reservation->session->reservations.insert(id);
      reservations_[id] = std::move(reservation);
      return absl::OkStatus();
    }
  }
  context_->index->CloseReservation(id).IgnoreError();
  return absl::NotFoundError("reserve: the session ended");
}

absl::StatusOr<ReservationPtr> Sessions::FindReservation(block::SessionId session,
                                                         block::ReservationId id) const {
  base::MutexLock lock(mutex_);
  auto found = reservations_.find(id);
  if (found == reservations_.end() || found->second->session->id != session ||
      !found->second->session->attached) {
    return absl::NotFoundError(
        absl::StrCat("reservation: ", id.value, " is not held by this session"));
  }
  found->second->used_us = context_->Now();
  return found->second;
}

void Sessions::DropReservation(block::ReservationId id) {
  ReservationPtr reservation;
  {
    base::MutexLock lock(mutex_);
    auto found = reservations_.find(id);
    if (found == reservations_.end()) return;
    reservation = std::move(found->second);
    reservations_.erase(found);
    reservation->session->reservations.erase(id);
  }
  reservation->cancelled = true;
  {
    base::MutexLock lock(reservation->mutex);
    reservation->closed = true;
    for (const auto& [key, page] : reservation->arriving) context_->arena->Free(page.extent);
    reservation->arriving.clear();
  }
  context_->index->CloseReservation(id).IgnoreError();  // known: the table had it
  context_->FreeTaken();
  announcements.Add();
}

void Sessions::EndIdleReservations() {
  constexpr int64_t kLookEvery = kIdleMicros / 60;
  const int64_t now = context_->Now();
  int64_t due = next_idle_look_us_;
  if (now < due || !next_idle_look_us_.compare_exchange_strong(due, now + kLookEvery)) return;
  std::vector<block::ReservationId> idle;
  {
    base::MutexLock lock(mutex_);
    for (const auto& [id, reservation] : reservations_) {
      if (now - reservation->used_us >= kIdleMicros) idle.push_back(id);
    }
  }
  for (const block::ReservationId id : idle) DropReservation(id);
  if (!idle.empty()) context_->counters.Add("reservations.idle_ended", idle.size());
}

std::shared_ptr<const Charge> Sessions::ChargeAnnounced(const SessionPtr& session, uint64_t bytes) {
  return Charge::Take(bytes, context_->in_flight_share_bytes / 2, 1,
                      {&session->announced_bytes, &announced_bytes_}, session);
}

// Two shares: of the arena, for what is not committed; and a smaller one for pages that have begun
// to arrive, since a byte is enough to begin one.
absl::Status Sessions::ChargeArriving(Reservation* reservation, uint64_t bytes,
                                      const Patience& patience, ArrivingPage* page) {
  Session& session = *reservation->session;
  for (;;) {
    const uint64_t arena_bytes = context_->arena->stats().capacity_bytes;
    page->charge = Charge::Take(bytes, arena_bytes, kArrivingWeight,
                                {&session.arriving_bytes, &arriving_bytes_}, reservation->session);
    page->partial = Charge::Take(bytes, std::max(arena_bytes / 4, 4 * bytes), 1,
                                 {&session.partial_bytes, &partial_bytes_}, reservation->session);
    if (page->charge != nullptr && page->partial != nullptr) return absl::OkStatus();
    page->charge = page->partial = nullptr;
    // A commit of another reservation, of this session or of another one, makes room.
    const uint64_t own = ArrivingBytes(reservation);
    const bool may_fit = own + bytes <= arena_bytes / (kArrivingWeight + 1) * kArrivingWeight &&
                         own < arriving_bytes_;
    if (may_fit && !patience.over() && !reservation->cancelled) {
      std::this_thread::sleep_until(patience.next_look());
      continue;
    }
    context_->counters.Add("refused.arriving");
    return absl::ResourceExhaustedError(absl::StrCat(
        "put: pages of ", base::FormatBytes(session.arriving_bytes),
        " of this session are not committed, ", base::FormatBytes(session.partial_bytes),
        " of them not whole; of all sessions ", base::FormatBytes(arriving_bytes_), " and ",
        base::FormatBytes(partial_bytes_), " in a RAM tier of ", base::FormatBytes(arena_bytes),
        "; another would be more than its share: end pages that were begun, commit some"));
  }
}

}  // namespace prefixd::cache
