// The table of sessions, and of the leases and reservations that they hold.
//
// A session that ends while its process may still be reading the arena is "cut off": it keeps its
// slot and leases until the kernel has dropped the slot's lock. Meanwhile it can be resumed.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "cache/context.h"
#include "cache/patience.h"
#include "cache/tables/announcements.h"
#include "cache/tables/session.h"
#include "cache/work_signal.h"

namespace prefixd::cache {

// Thread-safe.
class Sessions {
 public:
  explicit Sessions(Context* context);

  // --- sessions (sessions.cc, resume.cc) ---
  BegunSession Begin(const SessionOptions& options) PREFIXD_EXCLUDES(mutex_);
  // NotFound unless attached; the message begins with `verb`.
  absl::StatusOr<SessionPtr> Find(block::SessionId session, const char* verb) const
      PREFIXD_EXCLUDES(mutex_);
  // Ends the session now, or cuts it off if its process may still be reading.
  void CutOff(const SessionPtr& session) PREFIXD_EXCLUDES(mutex_);
  absl::StatusOr<SessionFiles> OpenFiles(const SessionKey& key, const base::Peer& peer)
      PREFIXD_EXCLUDES(mutex_);
  std::shared_ptr<const ram::Staging> StagingOf(const Session& session) const
      PREFIXD_EXCLUDES(mutex_);
  // What people may see of a session: another number, from which nobody gets to the id.
  block::SessionName NameOf(block::SessionId session) const;
  std::vector<block::SessionInfo> List() const PREFIXD_EXCLUDES(mutex_);
  // Puts a reason into, or an empty one out of, `part` of the model's note. True: people see
  // another reason than before. ResourceExhausted beyond kMaxNotShared models.
  absl::StatusOr<bool> NoteReason(const SessionPtr& session, const block::NotShared& note,
                                  std::string NotSharedNote::*part) PREFIXD_EXCLUDES(mutex_);
  struct Counts {
    uint64_t attached = 0, cut_off = 0;
    uint64_t not_shared = 0;          // notes of attached sessions
    uint64_t kept_staging_bytes = 0;  // of sessions that ended
  };
  Counts Count() const PREFIXD_EXCLUDES(mutex_);

  // --- leases (leases.cc) ---
  // NotFound unless the session holds it.
  absl::StatusOr<LeasePtr> FindLease(block::SessionId session, block::LeaseId lease) const
      PREFIXD_EXCLUDES(mutex_);
  // NotFound if the session ended meanwhile, an error of its charge_lease; the lease then ends too.
  absl::Status AddLease(const SessionPtr& session, block::LeaseId id, LeasePtr lease)
      PREFIXD_EXCLUDES(mutex_);
  // Takes the lease out of the table. NotFound unless the session holds it.
  absl::StatusOr<LeasePtr> TakeLease(block::SessionId session, block::LeaseId lease)
      PREFIXD_EXCLUDES(mutex_);
  std::vector<block::LeaseInfo> ListLeases() const PREFIXD_EXCLUDES(mutex_);

  // --- reservations (reservations.cc) ---
  // NotFound if the session ended meanwhile; the reservation is then closed in the index.
  absl::Status AddReservation(ReservationPtr reservation) PREFIXD_EXCLUDES(mutex_);
  // NotFound unless the session holds it. Counts as a use.
  absl::StatusOr<ReservationPtr> FindReservation(block::SessionId session,
                                                 block::ReservationId id) const
      PREFIXD_EXCLUDES(mutex_);
  void DropReservation(block::ReservationId id) PREFIXD_EXCLUDES(mutex_);
  // Ends reservations that no call named for kIdleReservation. Mostly it costs a look at one
  // number; whoever asks, stores or waits calls it.
  void EndIdleReservations() PREFIXD_EXCLUDES(mutex_);
  // Charges the session for the tokens that it announces. nullptr: it would have more than its
  // share.
  std::shared_ptr<const Charge> ChargeAnnounced(const SessionPtr& session, uint64_t bytes);
  // Charges the session for the extent of a page that begins to arrive. Waits while other pages may
  // become whole or be published. ResourceExhausted if the session would have more than its share.
  absl::Status ChargeArriving(Reservation* reservation, uint64_t bytes, const Patience& patience,
                              ArrivingPage* page);
  uint64_t announced_bytes() const { return announced_bytes_; }
  uint64_t arriving_bytes() const { return arriving_bytes_; }

  // --- what an earlier daemon left (start/adopt.cc) ---
  // A session of an earlier daemon whose process may still be reading: it is cut off from the
  // start. Gives it a lease that holds `lease` of the index, made with SlotPtr `slot`, and `kept`.
  struct Earlier {
    SessionPtr session;
    block::LeaseId lease;  // in the index; none = no page
    uint64_t pages = 0, bytes = 0;
    std::vector<std::shared_ptr<const KeptExtent>> kept;
  };
  void Seat(Earlier earlier) PREFIXD_EXCLUDES(mutex_);

  // --- the thread that frees what ended (reap.cc) ---
  // Frees cut-off sessions whose processes read no more, and the staging that they kept. True: some
  // are left, look again soon.
  bool Step() PREFIXD_EXCLUDES(mutex_);
  void Run();  // until Stop
  void Stop() { ended_.Stop(); }
  void NotifyEnded() { ended_.Notify(); }

  Announcements announcements;

 private:
  // The cache keeps staging of sessions that ended while their worker may read its own pages there.
  struct KeptStaging {
    std::shared_ptr<ram::Staging> staging;
    uint64_t pid = 0;
  };
  struct HeldLease {
    SessionPtr session;
    LeasePtr lease;
  };

  SlotPtr ClaimSlot(const SessionPtr& session);
  void GrantStaging(uint64_t wanted_bytes, Session* session, BegunSession* begun);
  // The session of this key, cut off or not; null: there is none.
  SessionPtr FindByKey(const SessionKey& key) const PREFIXD_REQUIRES(mutex_);
  // False: there is none, its slot is free, or it is another process's.
  bool Resume(const SessionKey& key, const SessionPtr& session, BegunSession* begun)
      PREFIXD_EXCLUDES(mutex_);
  // Moves what `earlier` holds to the new session, as one lease.
  void TakeOver(const Session& earlier, const SessionPtr& session, BegunSession* begun)
      PREFIXD_REQUIRES(mutex_);
  absl::StatusOr<SessionPtr> ClaimFiles(const SessionKey& key, const base::Peer& peer)
      PREFIXD_EXCLUDES(mutex_);
  std::shared_ptr<ram::Staging> StagingFor(const SessionPtr& session) PREFIXD_EXCLUDES(mutex_);
  block::LeaseId NewLeaseId() PREFIXD_REQUIRES(mutex_);
  bool FreeIfUnlocked(const SessionPtr& session) PREFIXD_EXCLUDES(mutex_);  // true: it is no more
  std::vector<SessionPtr> CutOffSessions() const PREFIXD_EXCLUDES(mutex_);
  uint64_t KeptStagingOf(uint64_t pid) const PREFIXD_REQUIRES(mutex_);
  bool FreeKeptStaging() PREFIXD_EXCLUDES(mutex_);  // true: some is left

  Context* const context_;
  const std::array<uint64_t, 2> name_key_;
  WorkSignal ended_;
  std::atomic<uint64_t> announced_bytes_{0};  // tokens of reservations
  std::atomic<uint64_t> arriving_bytes_{0};   // extents of pages that come by Put
  std::atomic<uint64_t> partial_bytes_{0};    // those of them that are not whole yet
  std::atomic<int64_t> next_idle_look_us_{0};

  mutable base::Mutex mutex_;
  absl::flat_hash_map<block::SessionId, SessionPtr> sessions_ PREFIXD_GUARDED_BY(mutex_);
  absl::flat_hash_map<block::LeaseId, HeldLease> leases_ PREFIXD_GUARDED_BY(mutex_);  // public ids
  absl::flat_hash_map<block::ReservationId, ReservationPtr> reservations_
      PREFIXD_GUARDED_BY(mutex_);
  std::vector<KeptStaging> kept_staging_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t next_own_lease_ PREFIXD_GUARDED_BY(mutex_) = 1;  // of ids that the index does not give
};

}  // namespace prefixd::cache
