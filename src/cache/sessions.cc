// Sessions: who is attached, which slot it reads the arena under, and what happens when it ends.
//
// A session that ends while its process may still be reading is "cut off": it keeps slot and leases
// until the kernel has dropped the slot's lock.
#include <algorithm>
#include <cstring>
#include <random>

#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

constexpr std::chrono::milliseconds kReapEvery(10);

uint64_t RandomWord() {
  static thread_local std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

SessionKey RandomKey() {
  SessionKey key;
  const uint64_t words[2] = {RandomWord(), RandomWord()};
  std::memcpy(key.data(), words, key.size());
  return key;
}

}  // namespace

SlotHold::~SlotHold() {
  if (!owner_->stopping) owner_->slots->Release(slot_);
}

KeptExtent::~KeptExtent() {
  if (!owner_->stopping) owner_->arena->Free(extent_);
}

SlotPtr Core::ClaimSlot(const SessionPtr& session) {
  const std::optional<uint32_t> slot = slots->Claim(session->id, session->key);
  if (!slot.has_value()) {
    counters.Add("sessions.without_slot");
    return nullptr;
  }
  return std::make_shared<const SlotHold>(this, *slot);
}

ArenaPlace Cache::arena() const {
  const ram::Arena& arena = *core_->arena;
  if (!arena.shared()) return {.held_by_another = core_->arena_held};
  return {.shared = true, .file_bytes = arena.file_bytes(), .data_offset = arena.data_offset()};
}

bool Cache::CouldHaveArena() const {
  return core_->arena_held && base::IsUnlocked(core_->options.arena_path);
}

namespace {

constexpr std::chrono::seconds kLoadWait{2};

}  // namespace

BegunSession Cache::BeginSession(const SessionOptions& options) {
  auto session = std::make_shared<Session>(block::SessionId{RandomWord() | 1}, options.worker);
  session->key = RandomKey();
  session->begun_us = core_->Now();
  {
    base::MutexLock lock(session->event_mutex);
    session->on_event = options.on_event;
  }
  BegunSession begun;
  begun.session = session->id;
  begun.key = session->key;
  if (options.wants_arena && core_->arena->shared()) {
    // What the earlier session held is known once the index is loaded.
    if (options.resume.has_value()) {
      core_->WaitLoaded(std::chrono::steady_clock::now() + kLoadWait);
    }
    begun.resumed = options.resume.has_value() && core_->Resume(*options.resume, session, &begun);
    if (!begun.resumed) session->slot = core_->ClaimSlot(session);
    begun.slot = session->slot_number();
  }
  if (session->slot != nullptr && options.staging_bytes > 0) {
    auto granted = core_->staging->Grant(options.staging_bytes);
    if (granted.ok()) {
      session->staging = *std::move(granted);
      begun.staging_bytes = session->staging->bytes();
    } else {
      core_->counters.Add("sessions.without_staging");
    }
  }
  core_->counters.Add("sessions.begun");
  base::MutexLock lock(core_->mutex);
  core_->sessions[session->id] = std::move(session);
  return begun;
}

absl::StatusOr<SessionFiles> Cache::OpenFiles(const SessionKey& key, uint64_t pid) {
  SessionPtr session;
  std::shared_ptr<ram::Staging> staging;
  {
    base::MutexLock lock(core_->mutex);
    for (const auto& [id, known] : core_->sessions) {
      if (known->key == key && known->attached && !known->files_given && known->slot != nullptr) {
        session = known;
      }
    }
    if (session == nullptr) {
      return absl::NotFoundError("open_files: no session of this key waits for its files");
    }
    session->files_given = session->opening_files = true;
    session->pid = pid;
    staging = session->staging;
  }
  core_->slots->SetPid(session->slot_number(), pid);
  absl::StatusOr<int> arena = core_->slots->OpenFor(session->slot_number());
  absl::StatusOr<int> staged = -1;
  if (arena.ok() && staging != nullptr) staged = staging->Duplicate();
  base::MutexLock lock(core_->mutex);
  session->opening_files = false;
  session->files_given = arena.ok();
  PREFIXD_RETURN_IF_ERROR(arena.status());
  return SessionFiles{.arena = *arena, .staging = staged.ok() ? *staged : -1};
}

void Cache::EndSession(block::SessionId id) {
  const absl::StatusOr<SessionPtr> session = core_->FindSession(id, "end_session");
  if (session.ok()) core_->CutOff(*session);
}

void Core::CutOff(const SessionPtr& session) {
  std::vector<ReservationPtr> dropped;
  std::shared_ptr<ram::Staging> given_back;
  {
    base::MutexLock lock(mutex);
    if (!session->attached) return;
    session->attached = false;
    for (block::ReservationId id : session->reservations) {
      if (auto found = reservations.find(id); found != reservations.end())
        dropped.push_back(found->second);
    }
    given_back = std::move(session->staging);
  }
  {
    base::MutexLock lock(session->event_mutex);
    session->on_event = nullptr;
  }
  for (const ReservationPtr& reservation : dropped) reservation->cancelled = true;
  // Leases first: a Put that waits for room may be waiting for these.
  const bool freed = FreeIfUnlocked(session);
  for (const ReservationPtr& reservation : dropped) {
    DropReservation(reservation->reserved.plan.reservation);
  }
  counters.Add("sessions.ended");
  if (freed) return;
  counters.Add("sessions.cut_off");
  reap_bell.Ring();
}

bool Core::FreeIfUnlocked(const SessionPtr& session) {
  {
    base::MutexLock lock(mutex);
    if (session->opening_files) return false;
  }
  if (session->slot != nullptr && slots->Locked(session->slot->slot())) return false;
  std::vector<LeasePtr> ended;  // outside the mutex
  base::MutexLock lock(mutex);
  if (sessions.erase(session->id) == 0) return true;  // resumed, or freed by another thread
  for (block::LeaseId id : session->leases) {
    auto found = leases.find(id);
    if (found == leases.end()) continue;
    ended.push_back(std::move(found->second.lease));
    leases.erase(found);
  }
  return true;
}

std::vector<SessionPtr> Core::CutOffSessions() const {
  std::vector<SessionPtr> cut_off;
  base::MutexLock lock(mutex);
  for (const auto& [id, session] : sessions) {
    if (!session->attached) cut_off.push_back(session);
  }
  return cut_off;
}

// Looks after cut-off sessions, and only while there are any.
void Core::ReapLoop() {
  while (reap_bell.Wait(std::nullopt)) {
    bool more = true;
    while (more) {
      for (const SessionPtr& session : CutOffSessions()) {
        if (FreeIfUnlocked(session)) counters.Add("sessions.reaped");
      }
      more = !CutOffSessions().empty();
      if (more && !reap_bell.Wait(kReapEvery)) return;
    }
  }
}

absl::StatusOr<SessionPtr> Core::FindSession(block::SessionId id, const char* verb) const {
  base::MutexLock lock(mutex);
  auto found = sessions.find(id);
  if (found == sessions.end() || !found->second->attached) {
    return absl::NotFoundError(absl::StrCat(verb, ": unknown session, attach first"));
  }
  return found->second;
}

}  // namespace prefixd::cache
