// Sessions and the tables of what they hold.
#include <random>

#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

block::SessionId RandomSession() {
  static thread_local std::random_device device;
  return block::SessionId{(uint64_t{device()} << 32) | device() | 1};
}

}  // namespace

block::SessionId Cache::BeginSession(const std::string& worker) {
  base::MutexLock lock(core_->mutex);
  block::SessionId session = RandomSession();
  while (core_->sessions.contains(session)) session = RandomSession();
  core_->sessions[session] = worker;
  core_->counters.Add("sessions.begun");
  return session;
}

void Cache::EndSession(block::SessionId session) {
  std::vector<block::ReservationId> reservations;
  std::vector<LeasePtr> leases;  // ended outside the mutex
  {
    base::MutexLock lock(core_->mutex);
    if (core_->sessions.erase(session) == 0) return;
    for (const auto& [id, reservation] : core_->reservations) {
      if (reservation->session == session) reservations.push_back(id);
    }
    absl::erase_if(core_->leases, [session, &leases](const auto& entry) {
      if (entry.second->session != session) return false;
      leases.push_back(entry.second);
      return true;
    });
  }
  leases.clear();  // first: a Put that waits for room may be waiting for these
  for (block::ReservationId id : reservations) core_->DropReservation(id);
  core_->counters.Add("sessions.ended");
}

bool Core::HasSession(block::SessionId session) const {
  base::MutexLock lock(mutex);
  return sessions.contains(session);
}

absl::StatusOr<SpacePtr> Core::FindSpace(block::SpaceHandle handle) const {
  base::MutexLock lock(mutex);
  auto found = spaces.find(handle);
  if (found == spaces.end()) {
    return absl::NotFoundError(
        absl::StrCat("space: ", handle.value, " is not open in this daemon's life, open it again"));
  }
  return found->second;
}

Lease::~Lease() {
  owner_->index->Release(lease_).IgnoreError();  // known: this object is its only holder
  owner_->FreeTaken();
}

absl::StatusOr<LeasePtr> Core::FindLease(block::SessionId session, block::LeaseId lease) const {
  base::MutexLock lock(mutex);
  auto found = leases.find(lease);
  if (found == leases.end() || found->second->session != session) {
    return absl::NotFoundError(
        absl::StrCat("lease: ", lease.value, " is not held by this session"));
  }
  return found->second;
}

absl::StatusOr<ReservationPtr> Core::FindReservation(block::SessionId session,
                                                     block::ReservationId id) const {
  base::MutexLock lock(mutex);
  auto found = reservations.find(id);
  if (found == reservations.end() || found->second->session != session) {
    return absl::NotFoundError(
        absl::StrCat("reservation: ", id.value, " is not held by this session"));
  }
  return found->second;
}

void Core::DropReservation(block::ReservationId id) {
  ReservationPtr reservation;
  {
    base::MutexLock lock(mutex);
    auto found = reservations.find(id);
    if (found == reservations.end()) return;
    reservation = found->second;
    reservations.erase(found);
  }
  {
    base::MutexLock lock(reservation->mutex);
    reservation->closed = true;
    for (const auto& [key, page] : reservation->staged) arena->Free(page.extent);
    reservation->staged.clear();
  }
  index->CloseReservation(id).IgnoreError();  // known: the table had it
  FreeTaken();
}

}  // namespace prefixd::cache
