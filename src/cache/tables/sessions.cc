#include "cache/tables/sessions.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/random.h"
#include "base/status.h"
#include "ram/make_file.h"

namespace prefixd::cache {
namespace {

constexpr uint64_t kOwnLeases = uint64_t{1} << 39;  // above what the index ever counts to

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

Sessions::Sessions(Context* context)
    : context_(context),
      name_key_{base::RandomWord(), base::RandomWord()},
      mutex_(&context->longest_hold) {}

SlotPtr Sessions::ClaimSlot(const SessionPtr& session) {
  const std::optional<uint32_t> slot = context_->slots->Claim(session->key_hash);
  if (!slot.has_value()) {
    context_->counters.Add("sessions.without_slot");
    return nullptr;
  }
  return std::make_shared<const SlotHold>(context_, *slot);
}

void Sessions::GrantStaging(uint64_t wanted_bytes, Session* session, BegunSession* begun) {
  auto granted = context_->staging->Grant(wanted_bytes);
  if (!granted.ok()) {
    context_->counters.Add("sessions.without_staging");
    return;
  }
  session->staging = *std::move(granted);
  begun->staging_bytes = session->staging->bytes();
}

BegunSession Sessions::Begin(const SessionOptions& options) {
  auto session = std::make_shared<Session>(RandomSessionId(), options.worker, options.library);
  const SessionKey key = RandomKey();
  session->key_hash = ram::KeyHash(key);
  session->peer = options.peer;
  session->charge_lease = options.charge_lease;
  session->begun_us = context_->Now();
  {
    base::MutexLock lock(session->event_mutex);
    session->on_event = options.on_event;
  }
  BegunSession begun;
  begun.session = session->id;
  begun.key = key;
  if (options.wants_arena && context_->arena->shared()) {
    begun.resumed = options.resume.has_value() && Resume(*options.resume, session, &begun);
    if (!begun.resumed) session->slot = ClaimSlot(session);
    begun.slot = session->slot_number();
  }
  if (session->slot != nullptr && options.staging_bytes > 0) {
    GrantStaging(options.staging_bytes, session.get(), &begun);
  }
  context_->counters.Add("sessions.begun");
  base::MutexLock lock(mutex_);
  sessions_[session->id] = std::move(session);
  return begun;
}

block::SessionName Sessions::NameOf(block::SessionId session) const {
  base::ByteWriter keyed;
  for (const uint64_t word : name_key_) keyed.Fixed(word);
  keyed.Fixed(session.value);
  block::SessionName name;
  std::memcpy(&name.value, base::Sha256(base::AsBytes(keyed.bytes())).data(), sizeof(name.value));
  return name;
}

absl::StatusOr<SessionPtr> Sessions::Find(block::SessionId id, const char* verb) const {
  base::MutexLock lock(mutex_);
  auto found = sessions_.find(id);
  if (found == sessions_.end() || !found->second->attached) {
    return absl::NotFoundError(absl::StrCat(verb, ": unknown session, attach first"));
  }
  return found->second;
}

SessionPtr Sessions::FindByKey(const SessionKey& key) const {
  const base::Digest256 hash = ram::KeyHash(key);
  SessionPtr found;
  for (const auto& [id, known] : sessions_) {
    if (base::SameSecret(known->key_hash, hash)) found = known;
  }
  return found;
}

// The session whose files `peer` is about to get; it is theirs from now on.
absl::StatusOr<SessionPtr> Sessions::ClaimFiles(const SessionKey& key, const base::Peer& peer) {
  base::MutexLock lock(mutex_);
  SessionPtr session = FindByKey(key);
  const bool known = session != nullptr && session->attached && session->slot != nullptr;
  if (known && session->peer.has_value() && !base::MayBeSameProcess(*session->peer, peer)) {
    context_->counters.Add("sessions.files_refused");
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
std::shared_ptr<ram::Staging> Sessions::StagingFor(const SessionPtr& session) {
  std::shared_ptr<ram::Staging> refused;  // given back outside the mutex
  base::MutexLock lock(mutex_);
  if (session->staging != nullptr &&
      KeptStagingOf(session->pid()) > context_->staging->left_bytes()) {
    refused = std::move(session->staging);
    context_->counters.Add("sessions.without_staging");
  }
  return session->staging;
}

std::shared_ptr<const ram::Staging> Sessions::StagingOf(const Session& session) const {
  base::MutexLock lock(mutex_);
  return session.staging;
}

absl::StatusOr<SessionFiles> Sessions::OpenFiles(const SessionKey& key, const base::Peer& peer) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, ClaimFiles(key, peer));
  const std::shared_ptr<ram::Staging> staging = StagingFor(session);
  context_->slots->SetOwner(session->slot_number(), peer);
  const absl::StatusOr<ram::SlotFiles> opened = context_->slots->OpenFor(session->slot_number());
  absl::StatusOr<int> staged = -1;
  if (opened.ok() && staging != nullptr) staged = staging->OpenForWorker();
  base::MutexLock lock(mutex_);
  session->opening_files = false;
  session->files_given = opened.ok();
  PREFIXD_RETURN_IF_ERROR(opened.status());
  return SessionFiles{.session = session->id,
                      .arena = opened->arena,
                      .lock = opened->lock,
                      .staging = staged.ok() ? *staged : -1};
}

void Sessions::CutOff(const SessionPtr& session) {
  std::vector<ReservationPtr> dropped;
  std::shared_ptr<ram::Staging> given_back;
  bool kept = false;
  {
    base::MutexLock lock(mutex_);
    if (!session->attached) return;
    session->attached = false;
    session->over = true;
    for (block::ReservationId id : session->reservations) {
      if (auto found = reservations_.find(id); found != reservations_.end())
        dropped.push_back(found->second);
    }
    given_back = std::move(session->staging);
    kept = given_back != nullptr && given_back->held();
    if (kept) kept_staging_.push_back({std::move(given_back), session->pid()});
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
  context_->counters.Add("sessions.ended");
  if (!freed) context_->counters.Add("sessions.cut_off");
  if (!freed || kept) ended_.Notify();
}

block::LeaseId Sessions::NewLeaseId() {
  return block::LeaseId{context_->lease_base + kOwnLeases + next_own_lease_++};
}

void Sessions::Seat(Earlier earlier) {
  base::MutexLock lock(mutex_);
  const SessionPtr& session = earlier.session;
  sessions_[session->id] = session;
  if (!earlier.lease && earlier.kept.empty()) return;
  auto held = std::make_shared<Lease>(context_, earlier.lease, session->slot);
  held->begun_us = session->begun_us;
  held->kept = std::move(earlier.kept);
  held->SetFacts({.ram_bytes = earlier.bytes, .pages = earlier.pages});
  const block::LeaseId id = NewLeaseId();
  session->leases.insert(id);
  leases_[id] = {session, std::move(held)};
}

absl::StatusOr<bool> Sessions::NoteReason(const SessionPtr& session, const block::NotShared& note,
                                          std::string NotSharedNote::*part) {
  base::MutexLock lock(mutex_);
  auto& notes = session->not_shared;
  auto known = notes.find(note.model);
  if (known == notes.end()) {
    if (note.reason.empty()) return false;
    if (notes.size() >= kMaxNotShared) {
      return absl::ResourceExhaustedError(absl::StrCat("not_shared: the session has notes on ",
                                                       notes.size(), " models, at most ",
                                                       kMaxNotShared));
    }
    known = notes.emplace(note.model, NotSharedNote{}).first;
  }
  const std::string before = known->second.reason();
  known->second.*part = note.reason;
  const std::string after = known->second.reason();
  if (after.empty()) notes.erase(known);
  return after != before;
}

Sessions::Counts Sessions::Count() const {
  Counts counts;
  base::MutexLock lock(mutex_);
  for (const KeptStaging& kept : kept_staging_) counts.kept_staging_bytes += kept.staging->bytes();
  for (const auto& [id, session] : sessions_) {
    ++(session->attached ? counts.attached : counts.cut_off);
    if (session->attached) counts.not_shared += session->not_shared.size();
  }
  return counts;
}

std::vector<block::SessionInfo> Sessions::List() const {
  std::vector<block::SessionInfo> list;
  absl::flat_hash_map<block::SessionName, uint64_t> bytes;
  for (const block::LeaseInfo& lease : ListLeases()) bytes[lease.holder] += lease.bytes;
  const ram::DevicePins pins = context_->arena->device_pins();
  base::MutexLock lock(mutex_);
  for (const auto& [id, session] : sessions_) {
    const block::SessionName name = NameOf(id);
    list.push_back({.session = name,
                    .worker = session->worker,
                    .library = session->library,
                    .slot = session->slot_number(),
                    .pid = session->pid(),
                    .attached = session->attached,
                    .age_s = static_cast<double>(context_->Now() - session->begun_us) * 1e-6,
                    .leases = session->leases.size(),
                    .leased_bytes = bytes[name],
                    .reservations = session->reservations.size(),
                    .staging_bytes = session->staging == nullptr ? 0 : session->staging->bytes()});
    if (session->slot != nullptr) {
      list.back().device_pinned_bytes = pins.slot_bytes[session->slot->slot()];
    }
    for (const auto& [model, note] : session->not_shared)
      list.back().not_shared.push_back({.model = model, .reason = note.reason()});
  }
  std::ranges::sort(list, {}, [](const block::SessionInfo& info) { return -info.age_s; });
  return list;
}

}  // namespace prefixd::cache
