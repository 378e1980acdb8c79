// What the verbs of the cache share. Internal to the room.
//
// Locks, outermost first: Reservation::mutex (one commit or piece of one reservation at a time),
// segment_mutex, clear_mutex, space_mutex, Core::mutex (the tables), the small mutexes of single
// leases, queues and loops. Only the first four are held across calls into other rooms;
// Session::event_mutex is held while a session is told something, and nothing else then.
//
// Threads: some that promote (and verify in between), one each that spills, removes files of
// segments that left, tells sessions what became ready, frees cut-off sessions, and looks after
// slabs.
#pragma once
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "cache/admission.h"
#include "cache/budget.h"
#include "cache/cache.h"
#include "cache/counters.h"
#include "cache/format_advice.h"
#include "cache/hash_key.h"
#include "cache/history.h"
#include "cache/late_ptr.h"
#include "cache/load_model.h"
#include "cache/pin.h"
#include "cache/refused.h"
#include "cache/rewrite.h"
#include "cache/session.h"
#include "cache/space_limits.h"
#include "cache/worth.h"
#include "index/prefix_index.h"
#include "ram/arena.h"
#include "ram/slots.h"
#include "ram/staging.h"
#include "ssd/segment_store.h"

namespace prefixd::cache {

// A page on its way to being readable: kPromoting in the index. From SSD into `extent`, or checked
// in place.
struct Promotion {
  index::PageInfo page;
  block::Extent extent;
  bool in_place = false;
  uint64_t queued_us = 0;
};
// Those of one request, in layer-group order. Requests take turns, so that a large one does not
// make the others wait.
struct PromotionBatch {
  std::vector<Promotion> promotions;
  size_t next = 0;
};

// Segments that the next one pushes out, and what of them is written again in it.
struct Leaving {
  std::vector<ssd::SegmentInfo> segments;
  std::vector<index::SpillBlock> blocks;
  uint64_t bytes = 0;  // of pages to be written again
};
// For what the files of the SSD tier have room: dirty pages and those that are written again, the
// latter alone, or nothing.
enum class SsdRoom { kNone, kForKept, kForAll };
// What a segment holds.
struct SegmentSums {
  uint64_t pages = 0, bytes = 0;                      // for the first time on SSD
  uint64_t rewritten_pages = 0, rewritten_bytes = 0;  // once more
};

// A hint: pages that are held and read when nobody waits for any other.
struct Prefetching {
  LeasePtr lease;
  SpacePtr space;
  std::vector<index::PageInfo> pages{};
  size_t next = 0;
  uint64_t bytes = 0;  // of all pages
};

// Pages of a lease that were not readable when it was answered, group by group in position order.
struct Watch {
  std::weak_ptr<Session> session;
  std::weak_ptr<Lease> lease;
  block::LeaseId id;
  std::vector<index::PageInfo> pages;  // extent: the place that the answer told; none = not told
  size_t next = 0;                     // all before it are readable
  std::vector<block::LeasedPage> untold = {};  // of the group that `next` is in
};

struct PhaseTimes {
  uint64_t wait_us = 0, match_us = 0, room_us = 0;
};

// A loop's bell: rung when there may be work.
struct Bell {
  base::Mutex mutex;
  base::CondVar wake;
  bool rung PREFIXD_GUARDED_BY(mutex) = false;
  bool stop PREFIXD_GUARDED_BY(mutex) = false;
  void Ring() PREFIXD_EXCLUDES(mutex);
  void Stop() PREFIXD_EXCLUDES(mutex);
  // Waits until it is rung, or `limit` has passed; false = stop.
  bool Wait(std::optional<std::chrono::milliseconds> limit) PREFIXD_EXCLUDES(mutex);
};

struct BlockRecord;  // record.h

// Of what is to be written.
uint64_t PageBytesOf(std::span<const index::SpillBlock> blocks);

inline constexpr uint64_t kOwnLeases = uint64_t{1} << 39;  // above what the index ever counts to

struct Core {
  explicit Core(const Options& options);
  ~Core();
  absl::Status Start();
  HashKeyPlaces KeyPlaces() const;
  absl::Status OpenArena();

  // --- tables (sessions.cc, leases.cc, open_space.cc) ---
  // NotFound unless attached.
  absl::StatusOr<SessionPtr> FindSession(block::SessionId session, const char* verb) const
      PREFIXD_EXCLUDES(mutex);
  // Puts a reason into, or an empty one out of, `part` of the model's note (not_shared.cc). True:
  // people see another reason than before. ResourceExhausted beyond kMaxNotShared models.
  absl::StatusOr<bool> NoteReason(const SessionPtr& session, const block::NotShared& note,
                                  std::string NotSharedNote::*part) PREFIXD_EXCLUDES(mutex);
  // NotFound unless this session opened it.
  absl::StatusOr<SpacePtr> FindSpace(const Session& session, block::SpaceHandle handle) const
      PREFIXD_EXCLUDES(mutex);
  absl::StatusOr<LeasePtr> FindLease(block::SessionId session, block::LeaseId lease) const
      PREFIXD_EXCLUDES(mutex);
  absl::StatusOr<ReservationPtr> FindReservation(block::SessionId session,
                                                 block::ReservationId id) const
      PREFIXD_EXCLUDES(mutex);
  SpacePtr AddSpace(const block::SpaceIdentity& identity, bool* created) PREFIXD_EXCLUDES(mutex);
  // The new space with the fewest fields that differ, of those that were opened last and some more.
  void FindNearest(const SpaceInfo& space, OpenedSpace* opened) PREFIXD_EXCLUDES(mutex);

  // --- spaces that nothing is known of (forget_spaces.cc) ---
  // Makes room for what one more space costs: closes those that the session used longest ago, once
  // it has more open than it leaves to others, and forgets empty ones. ResourceExhausted: there is
  // none.
  absl::Status MakeSpaceRoom(const SessionPtr& session, uint64_t bytes) PREFIXD_EXCLUDES(mutex);
  // Looks at so many of the spaces, in turn, and forgets those that are empty and open nowhere.
  void ForgetEmptySpaces(size_t looks) PREFIXD_EXCLUDES(mutex);
  bool ForgetSpace(SpacePtr space) PREFIXD_REQUIRES(space_mutex) PREFIXD_EXCLUDES(mutex);
  uint64_t MostSpaceBytes() const { return index_share_bytes.load() / 2; }
  // Identities of these blocks' spaces that are not on SSD yet; those of forgotten ones go.
  absl::Status SaveSpaces(std::span<const index::SpillBlock> blocks) PREFIXD_EXCLUDES(mutex);
  absl::Status SaveSpace(const SpaceInfo& space);
  absl::Status CheckServable(const block::SpaceIdentity& identity) const;
  void DropReservation(block::ReservationId id) PREFIXD_EXCLUDES(mutex);
  // Ends reservations that nobody named for kIdleReservation. It costs a look at one number most of
  // the time; whoever asks, stores or waits calls it.
  void EndIdleReservations() PREFIXD_EXCLUDES(mutex);
  // For the extent of a page that begins to arrive; waits while other pages may become whole, or be
  // published. ResourceExhausted where the session would have more than its share.
  absl::Status ChargeArriving(Reservation* reservation, uint64_t bytes, const Patience& patience,
                              ArrivingPage* page);
  // Lease ids as callers see them: those of another daemon's life mean nothing in this one.
  block::LeaseId PublicId(block::LeaseId in_index) const {
    return block::LeaseId{in_index.value + lease_base};
  }
  // NotFound when the session ended meanwhile; the lease then ends too.
  absl::Status Register(const SessionPtr& session, block::LeaseId id, LeasePtr lease)
      PREFIXD_EXCLUDES(mutex);

  block::SessionId HoldSession();

  // --- sessions.cc, resume.cc ---
  void CutOff(const SessionPtr& session);
  bool FreeIfUnlocked(const SessionPtr& session);  // true: it is no more
  std::vector<SessionPtr> CutOffSessions() const PREFIXD_EXCLUDES(mutex);
  uint64_t KeptStagingOf(uint64_t pid) const PREFIXD_REQUIRES(mutex);
  std::shared_ptr<ram::Staging> StagingFor(const SessionPtr& session) PREFIXD_EXCLUDES(mutex);
  bool FreeKeptStaging() PREFIXD_EXCLUDES(mutex);
  void ReapLoop();
  // The session of this key, cut off or not; null: there is none.
  SessionPtr FindByKey(const SessionKey& key) const PREFIXD_REQUIRES(mutex);
  // False: there is none, its slot is free, or it is another process's.
  bool Resume(const SessionKey& key, const SessionPtr& session, BegunSession* begun);
  SlotPtr ClaimSlot(const SessionPtr& session);
  absl::StatusOr<SessionPtr> ClaimFiles(const SessionKey& key, const base::Peer& peer);

  // --- loading (load.cc, watch.cc) ---
  // Leased pages become an answer: makes them readable, or shortens, unless StartAll did. `floor`:
  // tokens that the lease covered before.
  absl::StatusOr<Acquired> Answer(const SessionPtr& session, const SpacePtr& space,
                                  index::Acquired held, const Request& request, uint32_t floor,
                                  LeasePtr continued, std::optional<Patience> load_until);
  void StartLoading(const SpaceInfo& space, uint32_t floor, const Patience& patience,
                    index::Acquired* held);
  void CutWhatDoesNotPay(uint32_t block_tokens, double tokens_per_s, uint32_t floor,
                         std::span<index::Acquired> held);
  // One request of a set, or one alone where not every group is full.
  struct Member {
    const Request* request = nullptr;
    SpacePtr space;
    index::SetItem item{};
  };
  // Starts loading, or takes shorter leases in place of the set's until all of what they need is on
  // its way.
  void StartAll(const Session& session, std::span<const Member> members, const Patience& patience,
                std::vector<index::Acquired>* held);
  void AddWatch(Watch watch);
  void WatchLoop();
  bool Advance(Watch* watch);  // false: nothing left to tell
  void TellReady(const Watch& watch, uint32_t group, std::vector<block::LeasedPage> untold);
  void TellFailed(Watch* watch, const index::PageInfo& page);

  // --- commit (commit.cc, stage.cc) ---
  void MakeIndexRoom(const Patience& patience, const std::atomic<bool>* cancelled);
  // InvalidArgument naming the first place that is not one of the reservation's pages.
  absl::Status CheckStaged(Reservation* reservation, const CommitRequest& request,
                           uint64_t staging_bytes);
  absl::Status TakeStaged(Reservation* reservation, const StagedPlace& place,
                          const ram::Staging& from, const Patience& patience);
  absl::StatusOr<bool> CommitBlock(Reservation* reservation, size_t block_index,
                                   std::span<const StagedPlace> places, const ram::Staging* from,
                                   const Patience& patience, block::CommitAnswer* answer);
  absl::StatusOr<std::vector<index::NewPage>> PagesOf(Reservation* reservation,
                                                      size_t block_index) const
      PREFIXD_REQUIRES(reservation->mutex);
  absl::StatusOr<index::NewPage> PageOf(const Reservation& reservation, size_t block_index,
                                        uint32_t group, ArrivingPage* page) const;
  absl::StatusOr<block::StoreResult> PublishPages(const Reservation& reservation,
                                                  size_t block_index,
                                                  const std::vector<index::NewPage>& pages);
  void WriteRecords(const Reservation& reservation, size_t block_index,
                    const index::Serials& serials, const std::vector<index::NewPage>& pages);
  absl::StatusOr<block::StoreResult> PublishBlock(Reservation* reservation, size_t block_index)
      PREFIXD_REQUIRES(reservation->mutex);
  void DeclareEnds(const CommitRequest& request);
  void Secure(const std::vector<index::BlockRef>& blocks, const Patience& patience,
              block::CommitAnswer* answer);
  absl::Status LeaseToWriter(const Reservation& reservation, uint32_t from_token, uint32_t tokens,
                             block::CommitAnswer* answer);
  void Announce() PREFIXD_EXCLUDES(announce_mutex);  // something was published, or given up

  // --- room (allocate.cc, slabs.cc) ---
  // An extent for a page, evicting, spilling or emptying a slab as needed. ResourceExhausted at the
  // deadline, or soon after the caller gave up or `cancelled` turned true.
  absl::StatusOr<block::Extent> AllocateExtent(uint64_t page_bytes, uint64_t full_page_bytes,
                                               const Patience& patience,
                                               const std::atomic<bool>* cancelled = nullptr);
  bool MakeSlabByMoving(uint64_t extent_bytes);
  void CountEvicted(const index::Evicted& evicted);
  bool EvictSomething(uint64_t extent_bytes, uint64_t* evicted_bytes);
  bool EvictColdest(uint64_t* evicted_bytes,  // adds to it
                    index::PrefixIndex::GiveUp what = index::PrefixIndex::GiveUp::kWhatMayGo);
  // `vain_rounds`: one more where a round of spilling found nothing to do.
  bool WaitForRoom(const Patience& patience, const std::atomic<bool>* cancelled,
                   int* vain_rounds = nullptr);
  // The page as it is once it is readable, or as it stands when patience is over.
  index::PageInfo AwaitPage(const index::PageRef& page, const Patience& patience) const;
  void WakeSpiller() PREFIXD_EXCLUDES(spill_mutex);
  void FreeTaken();
  // Moves what nobody holds out of the slab, evicts what has no other place. False: it did nothing.
  bool EmptySlab(const ram::SlabRange& slab, uint64_t may_evict);
  // Pages moved; stops at the first that has no place elsewhere, and for which giving up so many
  // bytes of the coldest blocks does not make one.
  size_t MoveOut(const ram::SlabRange& slab, uint64_t may_evict);
  std::optional<block::Extent> PlaceOutside(const index::PageInfo& page, const ram::SlabRange& slab,
                                            std::vector<block::Extent>* inside);
  bool MovePage(const index::PageInfo& page, block::Extent to);
  bool RetireSlab();  // false: every slab in service is within the budget
  bool WantsSlab() const;
  bool WantsMemoryAhead() const;  // the slab thread has something to do
  void SlabLoop();

  // --- which rung new blocks are advised in (format_advice.cc) ---
  uint32_t AdvisedSteps();
  void CountAdvised(const block::ReservePlan& plan, const std::vector<uint64_t>& writable);
  void CountGivenUp(const Request& request, const block::MatchAnswer& answer);
  void ExportAdvice(block::Stats* stats) const;

  // --- history (history.cc) ---
  void Remember(const Session& session, const SpaceInfo& space, const Request& request,
                const PhaseTimes& times, Acquired* acquired);

  // --- pins (pin.cc) ---
  void ExpirePins();
  void DropPinsOf(const SpaceInfo& space);  // that a Clear ended in the index
  absl::StatusOr<Pinned> TryPin(const Session& session, const SpacePtr& space,
                                const Request& request, const Patience& patience,
                                block::PinId* in_index);
  uint64_t PinnedBytes(block::PinId in_index) const;

  // --- promotion (promote.cc) ---
  void Enqueue(std::vector<Promotion> promotions);
  void Promote(const Promotion& promotion);
  void CheckInPlace(const Promotion& promotion);
  void WriteRecord(const index::PageInfo& page, block::Extent extent) PREFIXD_REQUIRES(clear_mutex);
  // Of a page that was awaited and did not come.
  block::ShortenReason WhyNotInRam(const index::PageInfo& page) const;
  void RefusePromotion(const index::PageRef& page);
  void GiveUpPromotion(const index::PageInfo& page, const absl::Status& status);
  bool NextPromotion(Promotion* promotion);
  bool VerifySome();  // false: nothing unverified is left, or it is not this thread's turn
  void WaitVerified(const Patience& patience) PREFIXD_EXCLUDES(promote_mutex);
  void PromotionLoop();
  bool PromotionsWait() PREFIXD_EXCLUDES(promote_mutex);

  // --- prefetch (prefetch.cc) ---
  uint64_t BoundPrefetch(const std::vector<index::PageInfo>& pages, uint32_t* tokens) const;
  bool PrefetchOne() PREFIXD_EXCLUDES(promote_mutex);

  // --- verify (verify.cc), self test (self_test.cc) ---
  using PaceCallback = std::function<void(uint64_t bytes)>;  // waits as the rate limit wants
  VerifyProgress VerifyStep(uint64_t cursor, const PaceCallback& pace);
  void VerifySlab(uint64_t begin, uint64_t end, const PaceCallback& pace, VerifyProgress* progress);
  void VerifySegment(const ssd::SegmentInfo& segment, const PaceCallback& pace,
                     VerifyProgress* progress) PREFIXD_EXCLUDES(segment_mutex);
  bool IsBadInRam(const index::PageInfo& page) const;
  uint64_t VerifyTotal() const;
  void SelfTest() PREFIXD_EXCLUDES(segment_mutex);

  // --- purge (purge.cc) ---
  void Scrub(Cache::PurgeProgress* progress);
  absl::Status PurgeDamaged(Cache::PurgeProgress* progress);  // databases that were moved aside
  // Whether it holds bytes of the space, or of any, from before it was cleared.
  absl::StatusOr<bool> HoldsCleared(const ssd::SegmentInfo& segment, const block::SpaceId* space);
  absl::Status PurgeSegment(const ssd::SegmentInfo& segment, Cache::PurgeProgress* progress)
      PREFIXD_EXCLUDES(segment_mutex);

  // --- spill (spill.cc) ---
  // What goes into the next segment.
  struct Batch {
    std::vector<index::SpillBlock> blocks;
    size_t first = 0;    // so many are written whatever comes; for the rest urgent ones do not wait
    uint64_t bytes = 0;  // of dirty pages; without room for them only `leaving` is written
    Leaving leaving;     // its blocks are in `blocks`
    bool refused = false;  // others may be given up now, unwritten
  };
  enum class WriteLimits { kKeep, kIgnore };
  // One segment. Bytes spilled, or something where others were refused; 0 = nothing dirty, or no
  // room without dropping what was written after `round_start`.
  absl::StatusOr<uint64_t> SpillOnce(uint64_t round_start, WriteLimits limits = WriteLimits::kKeep);
  // Writes what was picked, and lets the segments go that leave for it. On an error nothing has
  // changed.
  absl::StatusOr<SegmentSums> WriteBatch(Batch batch) PREFIXD_REQUIRES(segment_mutex);
  // Takes the blocks that did not come into the segment out of the batch, unpicked; fills in record
  // sequences of the others.
  absl::Status WriteSegment(Batch* batch, std::vector<index::SpilledPage>* spilled,
                            SegmentSums* sums) PREFIXD_REQUIRES(segment_mutex);
  absl::Status WritePages(ssd::SegmentWriter* segment, const index::SpillBlock& block,
                          std::vector<index::SpilledPage>* spilled, BlockRecord* record,
                          SegmentSums* sums);
  uint32_t ElementBytes(const block::PageName& name) const;
  // False: the page that was to be written again is bad or gone.
  bool ReadAgain(const index::PageInfo& page, std::vector<std::byte>* buffer);
  uint64_t SegmentBytes() const;  // of a segment of the present SSD budget
  uint64_t SnapshotShare(uint64_t arena_bytes) const {
    return static_cast<uint64_t>(options.snapshot_share * static_cast<double>(arena_bytes));
  }
  uint64_t SsdBudget() const { return ssd_budget_bytes; }

  // --- age-out (age_out.cc) ---
  Leaving PickLeaving(uint64_t keep_after) PREFIXD_REQUIRES(segment_mutex);
  void Leave(const ssd::SegmentInfo& segment) PREFIXD_REQUIRES(segment_mutex);
  SsdRoom MakeSsdRoom(uint64_t bytes, uint64_t keep_after, Leaving* leaving)
      PREFIXD_REQUIRES(segment_mutex);
  absl::Status CheckFreeSpace() const;
  bool HasSsdRoom(uint64_t bytes);  // waits for files that are being removed
  std::vector<ssd::SegmentInfo> StayingSegments() const PREFIXD_EXCLUDES(drop_mutex);
  uint64_t BytesBeingDropped() const PREFIXD_EXCLUDES(drop_mutex);
  uint64_t DropsEnded() const PREFIXD_EXCLUDES(drop_mutex);
  // Until more than `seen` drops have ended. False: no segment is being dropped.
  bool WaitForDrop(uint64_t seen) PREFIXD_EXCLUDES(drop_mutex);
  void DropLoop();

  // --- what a round of spilling takes (spill.cc) ---
  Batch PickBatch(uint64_t round_start, WriteLimits limits) PREFIXD_REQUIRES(segment_mutex);
  // What commits wait for before all else; then the coldest.
  std::vector<index::SpillBlock> PickDirty(uint64_t max_bytes, Admission admission, bool* refused)
      PREFIXD_REQUIRES(segment_mutex);
  Admission Admitted(WriteLimits limits) PREFIXD_REQUIRES(segment_mutex);
  bool Refuse(const AdmissionRule& rule, std::vector<index::SpillBlock>* blocks);  // some
  // Until they are on SSD, a segment fails, or patience is over: then false.
  bool WaitForSsd(const std::vector<index::BlockRef>& blocks, const Patience& patience)
      PREFIXD_EXCLUDES(spill_mutex);
  void SaySpillFailed(const absl::Status& status);
  void PauseSpilling() PREFIXD_REQUIRES(spill_mutex);
  void SpillLoop();
  bool CleanBelow(uint64_t eighths) const;

  // --- limits of spaces (space_limits.cc) ---
  void KeepLimits();  // called where something is asked or stored
  void KeepCeiling(block::SpaceHandle space);
  void LoadLimits(const std::vector<std::pair<std::string, std::string>>& entries)
      PREFIXD_EXCLUDES(mutex);

  // --- budget (resize.cc) ---
  absl::Status ResizeRam(uint64_t ram_bytes) PREFIXD_EXCLUDES(budget_mutex);
  absl::Status CheckSsdBudget(uint64_t ssd_bytes) const;
  absl::Status ResizeSsd(uint64_t ssd_bytes) PREFIXD_EXCLUDES(segment_mutex);

  // --- start (recover.cc, adopt.cc, load_index.cc) ---
  void RecoverSpaces(const std::vector<std::pair<std::string, std::string>>& identities)
      PREFIXD_EXCLUDES(mutex);
  absl::Status Recover() PREFIXD_REQUIRES(segment_mutex);  // from the SSD tier's records
  class Legacy;  // what an earlier daemon left in the arena
  std::shared_ptr<Legacy> FindLegacy();
  void Adopt(Legacy* legacy);  // from the arena's records, after them; null: none is shared
  void AdoptSpaces();
  absl::Status LoadIndex(Legacy* legacy) PREFIXD_EXCLUDES(segment_mutex);
  void BeginLoading() PREFIXD_EXCLUDES(load_mutex);
  void EndLoading() PREFIXD_EXCLUDES(load_mutex);
  void SayNotWhole(const absl::Status& status);  // of loading; nothing where it went well
  absl::Status StartLoading(std::shared_ptr<Legacy> legacy);
  bool WaitLoaded(base::Deadline deadline) PREFIXD_EXCLUDES(load_mutex);
  SpacePtr SpaceOf(const block::SpaceId& id) const PREFIXD_EXCLUDES(mutex);

  // --- the SSD tier's start, now or later (tier.cc), Clear (clear.cc) ---
  absl::StatusOr<std::unique_ptr<ssd::SegmentStore>> OpenStore(const base::LockWait& wait);
  void SayFindings(const ssd::SegmentStore& opened);
  absl::Status TakeStore(std::unique_ptr<ssd::SegmentStore> opened) PREFIXD_REQUIRES(segment_mutex);
  // An error: nothing that time mends. Else TierLoop tries again what did not succeed.
  absl::Status StartTier() PREFIXD_EXCLUDES(segment_mutex);
  void LetTierWork() PREFIXD_EXCLUDES(spill_mutex);  // its threads, once all is read
  void SayClosed(const absl::Status& status);
  absl::Status OpenLate() PREFIXD_EXCLUDES(segment_mutex);
  absl::Status TryTierAgain() PREFIXD_EXCLUDES(segment_mutex);
  void TierLoop();
  bool RemoveDamaged();  // false: nothing that was moved aside is left, or it cannot be removed
  void ClearInRam(const SpaceInfo& space, Cache::Cleared* cleared) PREFIXD_REQUIRES(segment_mutex);
  // What the SSD has of these spaces, or of every one, counts no more. False: not on disk yet.
  bool SetBorders(std::span<const block::SpaceId> spaces, bool all) PREFIXD_REQUIRES(segment_mutex);

  // For locks of a process that is on its way out; said in the log.
  base::LockWait LockWait();
  void Log(LogLevel level, const std::string& line) const {
    if (options.log) options.log(level, line);
  }
  void CountMatch(const block::MatchAnswer& answer, size_t requested_tokens);
  void CountShortened(block::ShortenReason reason, uint64_t tokens_lost);
  int64_t Now() const { return options.clock->MonotonicMicros(); }

  const Options options;
  base::Mutex budget_mutex;  // one resizes at a time
  BudgetShares shares;       // as cut by Start
  std::atomic<uint64_t> ram_budget_bytes, ssd_budget_bytes;
  std::atomic<uint64_t> index_share_bytes{0}, in_flight_share_bytes{0};  // as they are now
  const uint64_t epoch;
  const uint64_t lease_base;
  const std::array<uint64_t, 2> name_key;  // of sessions' names
  const int64_t started_us;
  // What sessions hold stays held in the arena's file: the next daemon goes by it.
  std::atomic<bool> stopping{false};
  Counters counters;
  Refused refused;
  FormatAdvice format_advice;
  LoadModel load_model;
  std::unique_ptr<ram::Arena> arena;
  bool arena_held = false;            // by another process at the start: private memory instead
  std::unique_ptr<ram::Slots> slots;  // null unless the arena is shared
  std::unique_ptr<ram::StagingPool> staging;  // null unless the arena is shared
  block::HashKey hash_key{};
  block::BlockHasher hasher{};
  std::unique_ptr<index::PrefixIndex> index;
  LatePtr<ssd::SegmentStore> store;  // null without an SSD tier, and until it could be opened

  base::HoldGauge longest_hold;
  mutable base::Mutex mutex{&longest_hold};  // the tables
  absl::flat_hash_map<block::SessionId, SessionPtr> sessions PREFIXD_GUARDED_BY(mutex);
  // The cache keeps staging of sessions that ended while their worker may read its own pages there.
  struct KeptStaging {
    std::shared_ptr<ram::Staging> staging;
    uint64_t pid = 0;
  };
  std::vector<KeptStaging> kept_staging PREFIXD_GUARDED_BY(mutex);
  absl::flat_hash_map<block::SpaceHandle, SpacePtr> spaces PREFIXD_GUARDED_BY(mutex);
  std::map<block::SpaceId, SpacePtr> spaces_by_id PREFIXD_GUARDED_BY(mutex);
  std::deque<std::weak_ptr<const SpaceInfo>> recent_spaces PREFIXD_GUARDED_BY(mutex);  // new first
  std::vector<block::SpaceId> forgotten_spaces PREFIXD_GUARDED_BY(mutex);  // their identity on SSD
  block::SpaceId forget_cursor PREFIXD_GUARDED_BY(mutex){};  // the last one that was looked at
  mutable uint64_t space_uses PREFIXD_GUARDED_BY(mutex) = 0;
  base::Mutex space_mutex;  // a space is added or forgotten; taken before `mutex`
  std::atomic<uint64_t> known_space_bytes{0};  // memory_bytes of all
  struct HeldLease {
    SessionPtr session;
    LeasePtr lease;
  };
  absl::flat_hash_map<block::LeaseId, HeldLease> leases PREFIXD_GUARDED_BY(mutex);  // by public id
  absl::flat_hash_map<block::ReservationId, ReservationPtr> reservations PREFIXD_GUARDED_BY(mutex);
  uint64_t next_own_lease PREFIXD_GUARDED_BY(mutex) = 1;  // of ids that the index does not give

  std::atomic<uint64_t> next_request{1};  // of ids for requests that came without
  std::atomic<uint64_t> next_fetch{1};
  std::atomic<uint64_t> in_flight_bytes{0};
  std::atomic<uint64_t> announced_bytes{0};  // tokens of reservations
  std::atomic<uint64_t> arriving_bytes{0};   // extents of pages that come by Put
  std::atomic<uint64_t> partial_bytes{0};    // of these, of pages that are not whole yet
  std::atomic<int64_t> next_idle_look_us{0};

  PinTable pins;
  LimitedSpaces limited;
  Worth worth;
  std::unique_ptr<History> history;  // set by Start

  base::Mutex load_mutex;
  base::CondVar load_done;
  bool loading PREFIXD_GUARDED_BY(load_mutex) = true;
  std::atomic<bool> load_stop{false};

  base::Mutex announce_mutex;
  base::CondVar announced;
  uint64_t announcements PREFIXD_GUARDED_BY(announce_mutex) = 0;

  base::Mutex promote_mutex;
  base::CondVar promote_wake, verify_done;
  std::deque<PromotionBatch> promote_queue PREFIXD_GUARDED_BY(promote_mutex);
  bool promote_stop PREFIXD_GUARDED_BY(promote_mutex) = false;
  bool verifying PREFIXD_GUARDED_BY(promote_mutex) = false;  // one thread does, in its spare time
  std::atomic<bool> unverified_left{false};
  std::deque<Prefetching> prefetch_queue PREFIXD_GUARDED_BY(promote_mutex);
  std::atomic<uint64_t> prefetching_bytes{0};  // of the hints in it
  base::Mutex verify_mutex;                    // one step at a time; held while it reads

  Bell watch_bell;
  base::Mutex watch_mutex;
  std::vector<Watch> new_watches PREFIXD_GUARDED_BY(watch_mutex);
  Bell reap_bell, slab_bell, tier_bell;
  std::atomic<bool> all_backed{false};  // no slab could be backed ahead: allocations ask themselves

  base::Mutex spill_mutex;
  base::CondVar spill_wake;  // there is work
  base::CondVar spill_done;  // a segment was written, or failed
  bool spill_wanted PREFIXD_GUARDED_BY(spill_mutex) = false;
  bool spill_stop PREFIXD_GUARDED_BY(spill_mutex) = false;
  bool tier_works PREFIXD_GUARDED_BY(spill_mutex) = false;
  uint64_t spill_rounds PREFIXD_GUARDED_BY(spill_mutex) = 0;
  uint64_t spill_failures PREFIXD_GUARDED_BY(spill_mutex) = 0;
  std::vector<index::BlockRef> urgent PREFIXD_GUARDED_BY(spill_mutex);  // commits wait for them
  std::atomic<bool> must_spill{false};    // an allocation waits in vain for the spiller
  std::atomic<bool> urgent_waits{false};  // something is in `urgent`: a segment ends for it
  std::atomic<bool> ssd_failing{false};
  base::Mutex segment_mutex;  // one segment is written at a time
  AgeOut age_out PREFIXD_GUARDED_BY(segment_mutex);
  uint64_t last_segment_bytes PREFIXD_GUARDED_BY(segment_mutex) = 0;
  WriteBudget write_budget PREFIXD_GUARDED_BY(segment_mutex);
  struct ClearsWait {
    bool all = false;
    std::set<block::SpaceId> spaces;
  };
  ClearsWait clears_wait PREFIXD_GUARDED_BY(segment_mutex);  // until the store can be opened
  std::atomic<bool> border_waits{false};                     // or until its disk takes a border
  std::atomic<uint64_t> asked_bytes{0};                      // since the budget was told of them
  std::atomic<uint64_t> may_write_bytes{0};                  // of the budget, as last seen

  mutable base::Mutex drop_mutex;
  base::CondVar drop_wake, drop_done;
  // Out of the index; the first one's files are being removed.
  std::deque<ssd::SegmentInfo> dropping PREFIXD_GUARDED_BY(drop_mutex);
  uint64_t drops_ended PREFIXD_GUARDED_BY(drop_mutex) = 0;
  bool drop_stop PREFIXD_GUARDED_BY(drop_mutex) = false;
  std::atomic<uint64_t> failed_drops{0};  // segments whose files the disk did not remove

  base::Mutex clear_mutex;  // nothing gets a record again while its space is cleared

  std::vector<std::thread> threads;  // of Start, then of tier_thread
  std::thread tier_thread;           // only with an SSD budget
  std::string closed_why;            // that was said: of Start, then of tier_thread
};

// Counts bytes that are in a handler's hands, for as long as it lives.
class InFlight {
 public:
  InFlight(std::atomic<uint64_t>* gauge, uint64_t bytes) : gauge_(gauge), bytes_(bytes) {
    *gauge_ += bytes_;
  }
  ~InFlight() { *gauge_ -= bytes_; }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

 private:
  std::atomic<uint64_t>* const gauge_;
  const uint64_t bytes_;
};

// The page has to be read from SSD, by us or by somebody who is at it.
inline bool NeedsSsd(const index::PageInfo& page) {
  return page.state == index::PageState::kSsd ||
         (page.state == index::PageState::kPromoting && !page.extent);
}

const char* ToString(block::MatchKind kind);
const char* ToString(block::ShortenReason reason);
const char* ToString(block::EndReason reason);

}  // namespace prefixd::cache
