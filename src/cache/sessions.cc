// Sessions: who is attached, which slot it reads the arena under, and what happens when it ends.
//
// A session that ends while its process may still be reading is "cut off": it keeps slot and leases
// until the kernel has dropped the slot's lock.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/random.h"
#include "base/status.h"
#include "cache/core.h"
#include "ram/make_file.h"

namespace prefixd::cache {
namespace {

constexpr std::chrono::milliseconds kReapEvery(10);

SessionKey RandomKey() {
  SessionKey key;
  const uint64_t words[2] = {base::RandomWord(), base::RandomWord()};
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

block::SessionId RandomSessionId() { return {base::RandomWord() | 1}; }

SlotPtr Core::ClaimSlot(const SessionPtr& session) {
  const std::optional<uint32_t> slot = slots->Claim(session->key_hash);
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
  return core_->arena_held && ram::CouldBeOwned(core_->options.arena_path);
}

BegunSession Cache::BeginSession(const SessionOptions& options) {
  auto session = std::make_shared<Session>(RandomSessionId(), options.worker);
  const SessionKey key = RandomKey();
  session->key_hash = ram::KeyHash(key);
  session->peer = options.peer;
  session->begun_us = core_->Now();
  {
    base::MutexLock lock(session->event_mutex);
    session->on_event = options.on_event;
  }
  BegunSession begun;
  begun.session = session->id;
  begun.key = key;
  if (options.wants_arena && core_->arena->shared()) {
    // What the earlier session held is known once the index is loaded.
    if (options.resume.has_value()) {
      core_->WaitLoaded(std::chrono::steady_clock::now() + core_->options.resume_within);
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

block::SessionName Cache::NameOf(block::SessionId session) const {
  base::ByteWriter keyed;
  for (const uint64_t word : core_->name_key) keyed.Fixed(word);
  keyed.Fixed(session.value);
  block::SessionName name;
  std::memcpy(&name.value, base::Sha256(base::AsBytes(keyed.bytes())).data(), sizeof(name.value));
  return name;
}

SessionPtr Core::FindByKey(const SessionKey& key) const {
  const base::Digest256 hash = ram::KeyHash(key);
  SessionPtr found;
  for (const auto& [id, known] : sessions) {
    if (base::SameSecret(known->key_hash, hash)) found = known;
  }
  return found;
}

// The session whose files `peer` is about to get; it is theirs from now on.
absl::StatusOr<SessionPtr> Core::ClaimFiles(const SessionKey& key, const base::Peer& peer) {
  base::MutexLock lock(mutex);
  SessionPtr session = FindByKey(key);
  const bool known = session != nullptr && session->attached && session->slot != nullptr;
  if (known && session->peer.has_value() && !base::MayBeSameProcess(*session->peer, peer)) {
    counters.Add("sessions.files_refused");
    return absl::PermissionDeniedError(absl::StrCat("open_files: this is ", base::Describe(peer),
                                                    ", the session is that of ",
                                                    base::Describe(*session->peer)));
  }
  if (!known || session->files_given) {
    return absl::NotFoundError("open_files: no session of this key waits for its files");
  }
  session->files_given = session->opening_files = true;
  session->peer = peer;
  return session;
}

// Its staging, or nullptr: none was granted, or its process keeps so much staging of sessions that
// ended that it has its share.
std::shared_ptr<ram::Staging> Core::StagingFor(const SessionPtr& session) {
  std::shared_ptr<ram::Staging> refused;  // given back outside the mutex
  base::MutexLock lock(mutex);
  if (session->staging != nullptr && KeptStagingOf(session->pid()) > staging->left_bytes()) {
    refused = std::move(session->staging);
    counters.Add("sessions.without_staging");
  }
  return session->staging;
}

absl::StatusOr<SessionFiles> Cache::OpenFiles(const SessionKey& key, const base::Peer& peer) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, core_->ClaimFiles(key, peer));
  const std::shared_ptr<ram::Staging> staging = core_->StagingFor(session);
  core_->slots->SetOwner(session->slot_number(), peer);
  const absl::StatusOr<ram::SlotFiles> opened = core_->slots->OpenFor(session->slot_number());
  absl::StatusOr<int> staged = -1;
  if (opened.ok() && staging != nullptr) staged = staging->OpenForWorker();
  base::MutexLock lock(core_->mutex);
  session->opening_files = false;
  session->files_given = opened.ok();
  PREFIXD_RETURN_IF_ERROR(opened.status());
  return SessionFiles{
      .arena = opened->arena, .lock = opened->lock, .staging = staged.ok() ? *staged : -1};
}

void Cache::EndSession(block::SessionId id) {
  const absl::StatusOr<SessionPtr> session = core_->FindSession(id, "end_session");
  if (session.ok()) core_->CutOff(*session);
}

void Core::CutOff(const SessionPtr& session) {
  std::vector<ReservationPtr> dropped;
  std::shared_ptr<ram::Staging> given_back;
  bool kept = false;
  {
    base::MutexLock lock(mutex);
    if (!session->attached) return;
    session->attached = false;
    session->over = true;
    for (block::ReservationId id : session->reservations) {
      if (auto found = reservations.find(id); found != reservations.end())
        dropped.push_back(found->second);
    }
    given_back = std::move(session->staging);
    kept = given_back != nullptr && given_back->held();
    if (kept) kept_staging.push_back({std::move(given_back), session->pid()});
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
  if (!freed) counters.Add("sessions.cut_off");
  if (!freed || kept) reap_bell.Ring();
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

uint64_t Core::KeptStagingOf(uint64_t pid) const {
  uint64_t bytes = 0;
  for (const KeptStaging& kept : kept_staging) {
    if (kept.pid == pid) bytes += kept.staging->bytes();
  }
  return bytes;
}

// Of ended sessions, once nobody reads it any more. True: some is left.
bool Core::FreeKeptStaging() {
  std::vector<KeptStaging> freed;  // outside the mutex
  base::MutexLock lock(mutex);
  const auto held = [](const KeptStaging& kept) { return kept.staging->held(); };
  const auto first = std::partition(kept_staging.begin(), kept_staging.end(), held);
  std::move(first, kept_staging.end(), std::back_inserter(freed));
  kept_staging.erase(first, kept_staging.end());
  return !kept_staging.empty();
}

// Looks after cut-off sessions and kept staging, and only while there are any.
void Core::ReapLoop() {
  while (reap_bell.Wait(std::nullopt)) {
    bool more = true;
    while (more) {
      for (const SessionPtr& session : CutOffSessions()) {
        if (FreeIfUnlocked(session)) counters.Add("sessions.reaped");
      }
      more = FreeKeptStaging();
      more = !CutOffSessions().empty() || more;
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
