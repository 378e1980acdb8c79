// The cache: all of prefixd behind one class. It joins index (what is there) with ram and ssd
// (where the bytes are). It owns the parts (parts.h) and hands each verb to a function of verbs/:
//   tables/  sessions, leases, reservations, spaces, pins, what was learned
//   room/    extents for pages, memory for the index, slabs, limits
//   load/    pages from SSD, or verified where they stand, and who is told
//   store/   segments on SSD: what is written, what leaves, when the tier opens
//   start/   the index from what an earlier daemon left
//
// Thread-safe. Every call may come from any thread; waits end with the patience that is passed: at
// its deadline, or soon after the caller gave up.
// Errors are absl::Status as the wire contract (proto/prefixd/v1/prefix_cache.proto) describes
// them. A miss is a value.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/clock.h"
#include "base/file_lock.h"
#include "base/mutex.h"
#include "base/peer.h"
#include "block/answer.h"
#include "block/arena_file.h"
#include "block/events.h"
#include "block/limits.h"
#include "block/request.h"
#include "block/tokens.h"
#include "cache/patience.h"
#include "cache/remote_options.h"
#include "index/event_reader.h"

namespace prefixd::ssd {
struct FileLayer;
}

namespace prefixd::cache {

enum class LogLevel { kInfo, kWarning, kError };

struct Options {
  uint64_t ram_budget_bytes = uint64_t{1}
                              << 30;  // arena, index, bytes in flight, SSD tier's memory: all of it
  uint64_t ssd_budget_bytes = 0;      // 0 = no SSD tier
  std::string directory;              // of the SSD tier
  bool direct_io = true;
  bool ssd_reads_directly = true;  // false: RocksDB reads all pages (ssd/direct_read.h), for tests
  // The shared arena file, on a tmpfs. Empty: private memory, pages travel by Fetch and Put only,
  // and what is in RAM does not survive kill -9. One that cannot be used falls back to private
  // memory, and the log says why.
  std::string arena_path;
  // A disk that does not take the SSD tier is tried again after so long, then after twice that, up
  // to a minute.
  std::chrono::milliseconds ssd_retry{1000};
  // How long Open waits for locks, of the arena and of the SSD tier, that a process holds which has
  // ended or is not known to live: the kernel gives them back a moment after it died.
  std::chrono::milliseconds lock_wait = base::LockWait().limit;
  // The cache keeps so many bits of block hashes: tests cut it to 8, so that most blocks share one.
  uint32_t hash_bits = 128;
  bool trust_model_names = false;                      // allow spaces without a weights digest
  uint32_t block_tokens = block::kDefaultBlockTokens;  // for identities that leave it to the daemon
  // Changes of what is stored that are kept for those who follow them; about 150 bytes each, once
  // somebody did.
  uint32_t max_events = 65536;
  uint64_t segment_bytes = uint64_t{64} << 20;
  // With less than this free in the directory's filesystem nothing is written; 0: until it is full.
  uint64_t ssd_free_floor_bytes = 0;
  // The SSD tier is not opened before its directory's filesystem has so much free beside what the
  // tier has there.
  uint64_t ssd_open_free_bytes = 0;
  // What the SSD takes over a long time; beyond it only blocks that are likely to be used again. 0:
  // no limit.
  uint64_t ssd_write_bytes_per_s = 0;
  std::chrono::seconds ssd_write_window{24 * 3600};
  // What the SSD takes of the bytes that are asked for, found or stored; what it holds may be saved
  // up, and is at first. 0: no limit.
  double ssd_write_share = 0;
  // What begins in the first so many tokens of a sequence counts as likely to be used again.
  uint32_t ssd_shallow_tokens = 3072;
  // When new blocks are advised in a coarser rung (cache/tables/format_advice.h): while more than 5
  // % of the requested tokens had been given up; while more of the arena than this is full, 0:
  // never.
  bool coarser_on_misses = true;
  double coarser_above = 0;
  // Of the RAM for pages, what snapshots of states may take at most; beyond it the coldest go.
  double snapshot_share = 0.25;
  // Open returns after so long at the latest. The index may be loading on then: matches are shorter
  // and say kIndexLoading, and nothing is spilled or cleared before it is whole. Without a value
  // Open returns when it is.
  std::optional<std::chrono::milliseconds> open_within;
  // How long a session that resumes waits for the index, which says what it held.
  std::chrono::milliseconds resume_within{2'000};
  // How long memory that is given back waits for a worker that has it pinned for a device.
  std::chrono::milliseconds unpin_within{2'000};
  RemoteOptions remote;  // the store that hosts share
  std::string version = "0";
  std::shared_ptr<ssd::FileLayer> ssd_files = nullptr;  // ssd/file_layer.h; null: the machine's own
  const base::Clock* clock = &base::SystemClock::Get();
  // One line of plain text; called from any thread, must not call back.
  std::function<void(LogLevel, const std::string&)> log;
};

using block::CommitRequest;
using block::FetchRequest;
using block::kMaxEnds;
using block::kMaxItems;
using block::kMaxNotShared;
using block::kMaxPieceBytes;
using block::kMaxPinTtl;
using block::kMaxTokens;
using block::Released;
using block::Request;
using block::ReserveRequest;
using block::StagedPlace;
inline constexpr std::chrono::seconds kCommitPatience{5};
// A reservation that is neither put to, committed nor asked for in so long ends by itself.
inline constexpr std::chrono::minutes kIdleReservation{10};

// --- sessions ---

using SessionKey =
    std::array<std::byte, block::kSessionKeyBytes>;  // random; its holder may resume the session

// What a session is told while it is attached. Called from the cache's own threads, outside its
// locks; must not block, nor end the session. May come before Acquire has returned; none comes
// after EndSession has.
struct SessionEvent {
  enum class Kind { kLeaseReady, kLeaseFailed };
  Kind kind = Kind::kLeaseReady;
  block::LeaseId lease;
  uint32_t group = 0;
  uint32_t usable_tokens = 0;  // kLeaseFailed: the lease is worth this much; in every group
  block::ShortenReason reason = block::ShortenReason::kEvicted;  // kLeaseFailed
  // kLeaseReady: every page of the group is readable. Those whose offset the answer did not tell:
  std::vector<block::LeasedPage> pages;
};

struct SessionOptions {
  std::string worker;
  std::string library{};       // as block::SessionInfo has it
  bool wants_arena = false;    // and may have it: the daemon decides by the connection
  uint64_t staging_bytes = 0;  // wanted; needs the arena
  // Goes on with a session of this or an earlier daemon that was cut off, if its slot is still
  // locked: the slot stays, and what that session held is held by `resumed_lease` until it is
  // released.
  // Refused, and begun without, for another process than the one that the files were given to.
  std::optional<SessionKey> resume;
  // Who attaches, where that is known: OpenFiles serves nobody else. Else whoever comes first.
  std::optional<base::Peer> peer;
  std::function<void(const SessionEvent&)> on_event;
  // Asked before the session is given a lease, with the bytes of its pages; outside the cache's
  // locks. What it returns lives as long as the lease; an error is the answer in place of the
  // lease.
  using ChargeLease = std::function<absl::StatusOr<std::shared_ptr<void>>(uint64_t bytes)>;
  ChargeLease charge_lease{};
};
struct BegunSession {
  block::SessionId session;
  SessionKey key{};
  uint32_t slot = block::kNoSlot;  // kNoSlot: no arena (not asked, none, or all slots taken)
  uint64_t staging_bytes = 0;      // granted
  bool resumed = false;
  block::LeaseId resumed_lease;
};
// Descriptors for the worker; the caller owns them. -1 = none.
struct SessionFiles {
  block::SessionId session;
  int arena = -1;    // read-only
  int lock = -1;     // while it, or a mapping of it, is open, what the session holds stays
  int staging = -1;  // writable
};
struct ArenaPlace {
  bool shared = false;
  std::string path{};  // of the file, if it is shared
  uint64_t file_bytes = 0;
  uint64_t data_offset = 0;
  bool held_by_another = false;  // not shared, because another process had the file
  uint64_t capacity_bytes = 0;   // what the RAM budget gives it
  // What the tmpfs of a shared arena lets it have now, if that is less; else nullopt.
  std::optional<uint64_t> limited_to{};
};

struct OpenedSpace {
  block::SpaceHandle space;
  block::SpaceId id{};
  uint32_t block_tokens = 0;
  bool created = false;
  std::string nearest_model;  // of a new space: the known one that differs least, and where
  std::vector<std::string> differing_fields;
};

// A space of which another host told, without its salt.
struct ToldSpace {
  block::SpaceIdentity identity;
  std::string host;
  int64_t unix_us = 0;  // when it told, by its clock
};

// Where the time of an Acquire went: waiting for what another worker announced, finding the pages
// and leasing them, making room for pages on SSD and starting their reads.
struct PhaseTimes {
  uint64_t wait_us = 0, match_us = 0, room_us = 0;
};

struct Acquired {
  block::MatchAnswer match;
  block::LeaseId lease;                  // none when nothing is restorable
  std::vector<block::LeasedPage> pages;  // group by group in position order
  // In their place for a session that maps the arena and asked for it, where it can say all.
  block::PageTable table{};
  uint32_t first_block = 0;     // that they begin with; not 0 in a writer's lease
  std::string request_id = {};  // the request's, or one made up: what Why knows it by
  PhaseTimes times{};           // of the whole call, where it was of several items
};

// A piece of a page on its way in or out. `data` is borrowed for the call.
struct PagePiece {
  uint32_t group = 0;
  uint32_t first_token = 0;
  uint32_t tokens = 0;
  uint32_t rung = 0;
  uint64_t page_bytes = 0;
  uint64_t offset = 0;
  uint64_t xxh3 = 0;  // of the data, with sum_seed
  // PutPage: 0, or the page's of BlockPlan::seeds: xxh3 is then of the page up to the data's end.
  uint64_t sum_seed = 0;
  std::span<const std::byte> data;
  // Fetch: `data` stands in a leased extent, where it stays while Hold() of the lease is held.
  bool in_lease = false;
  // PutPage: the data in runs, in place of `data`.
  std::span<const std::span<const std::byte>> runs = {};
};

struct GroupReady {
  uint32_t group = 0;
  uint32_t usable_tokens = 0;
  block::ShortenReason reason =
      block::ShortenReason::kEvicted;  // when usable_tokens is below the lease
};
// Receives what Fetch sends, on the caller's thread. False: the receiver is gone, stop.
class FetchSink {
 public:
  virtual ~FetchSink() = default;
  virtual bool Page(const PagePiece& piece) = 0;
  virtual bool Ready(const GroupReady& ready) = 0;
};

struct Pinned {
  block::PinId pin;     // none: nothing of the sequence is cached
  bool made = false;    // by this call: the sequence was not pinned before
  uint32_t tokens = 0;  // from the first on
  uint64_t bytes = 0;
  block::MatchAnswer match;
};

// One step of Verify.
struct VerifyProgress {
  uint64_t next = 0;  // where to go on; 0 = everything was verified
  uint64_t pages = 0, bytes = 0;
  uint64_t bad = 0;           // pages that were dropped
  uint64_t unreadable = 0;    // pages and records that the disk did not give
  uint64_t in_use = 0;        // pages in RAM that were passed over: held, or on their way
  uint64_t passed_bytes = 0;  // of total_bytes, by this step
  uint64_t total_bytes = 0;   // arena and files, as they are now
};

struct Prefetched {
  uint32_t restorable_tokens = 0;
  // Of these, in RAM or on the way there; fewer where many hints are under way.
  uint32_t tokens = 0;
  uint64_t bytes = 0;  // that are read for it
};

struct FlushResult {
  uint64_t flushed_bytes = 0;
  uint64_t dirty_bytes = 0;   // left
  bool remote_waits = false;  // not all was offered to the store that hosts share
};

class Parts;

class Cache {
 public:
  // Opens the SSD tier and rebuilds the index from its records before it returns. A tier that its
  // disk does not take now is opened later, without; FailedPrecondition when the directory belongs
  // to another running prefixd, is none of ours or of a later format, PermissionDenied when this
  // user may not write it.
  static absl::StatusOr<std::unique_ptr<Cache>> Open(const Options& options);
  // Stops the threads. What a shared arena holds is found again by the next cache; of a private
  // one, what is dirty is lost unless drained.
  ~Cache();

  // The name of the store in an SSD directory, in hex, made with it; empty when there is none.
  static std::string StoreInstance(const std::string& directory);

  // True once the index is whole; false at the deadline.
  bool WaitLoaded(base::Deadline deadline);
  uint64_t epoch() const;
  // Follows what is stored, from a snapshot on; each reader is one listener's. It must end before
  // this.
  std::unique_ptr<index::EventReader> FollowEvents(block::EventQuery query);

  ArenaPlace arena() const;
  // Returns how the RAM budget is cut: the most that each part may take. Their sum is the budget.
  std::vector<block::NamedCount> RamShares() const;
  // The arena was held by another process when this cache was opened, which went without, and is
  // free now: a cache that is opened anew has it.
  bool CouldHaveArena() const;
  BegunSession BeginSession(const SessionOptions& options);
  // For sessions without a mapping.
  block::SessionId BeginSession(const std::string& worker) {
    SessionOptions options;
    options.worker = worker;
    return BeginSession(options).session;
  }
  // Frees its reservations, staging and leases: at once, or, when its process may still be
  // reading the arena, as soon as it cannot (the session is then "cut off", and may be resumed
  // meanwhile).
  void EndSession(block::SessionId session);
  // For the worker, once: by the key that only it was told. NotFound for a key that no session
  // waits with; PermissionDenied, naming both, for another process than attached.
  absl::StatusOr<SessionFiles> OpenFiles(const SessionKey& key, const base::Peer& peer);
  // What people may see of a session: another number, from which nobody gets to the id.
  block::SessionName NameOf(block::SessionId session) const;
  std::vector<block::SessionInfo> ListSessions() const;
  std::vector<block::LeaseInfo> ListLeases() const;
  // The session serves a model whose caches nobody shares. An empty reason takes its note back.
  // True: this is news. ResourceExhausted beyond kMaxNotShared models.
  absl::StatusOr<bool> NoteNotShared(block::SessionId session, const block::NotShared& note);
  // The same of a model whose space was refused, until its space opens (an empty reason). What the
  // session said itself stands before it; what finds no place is left out.
  bool NoteRefused(block::SessionId session, const block::NotShared& note);
  // What the session's process has pinned for devices: bit i % 8 of byte i / 8 is slab i of the
  // arena. FailedPrecondition if it does not map the arena, InvalidArgument if these are more bits
  // than the arena has slabs.
  absl::Status SetDevicePins(block::SessionId session, std::string_view slabs);

  // `identity.tenant` is the caller's: the daemon sets it from the connection.
  absl::StatusOr<OpenedSpace> OpenSpace(block::SessionId session, block::SpaceIdentity identity);

  absl::StatusOr<block::MatchAnswer> Match(block::SessionId session, const Request& request);
  absl::StatusOr<Acquired> Acquire(block::SessionId session, const Request& request,
                                   const Patience& patience);
  // --- the store that hosts share ---
  bool has_remote() const;
  // As Acquire; but nullopt, with nothing held or counted, if other hosts may have more of the
  // request. The caller then calls Bring and Acquire where it may wait for a network.
  absl::StatusOr<std::optional<Acquired>> AcquireHere(block::SessionId session,
                                                      const Request& request,
                                                      const Patience& patience);
  // Looks for what is missing of the request at other hosts, and starts bringing it: an Acquire
  // after it has it. Returns how many tokens that are. Takes RemoteOptions::find_patience at most.
  absl::StatusOr<uint32_t> Bring(block::SessionId session, const Request& request);
  // Waits until what was committed is written to the store, or passed over. False: not in time.
  bool WaitRemote(const Patience& patience);
  // Acquire for several, with one length: the longest that is right for all of them. What the
  // others cost an answer it says last, as kCommonLength. An error, and nothing is held, where one
  // request alone would be one.
  absl::StatusOr<std::vector<block::MatchAnswer>> MatchSet(block::SessionId session,
                                                           std::span<const Request> requests);
  absl::StatusOr<std::vector<Acquired>> AcquireSet(block::SessionId session,
                                                   std::span<const Request> requests,
                                                   const Patience& patience);
  absl::Status Release(block::SessionId session, const Released& released);
  // Holds the pages of a lease although it was released, until it is let go: for bytes that are
  // still on their way out. nullptr for an unknown lease.
  std::shared_ptr<const void> Hold(block::SessionId session, block::LeaseId lease) const;
  // Sends the lease's pages cut to the token, group by group, each once it is in RAM and
  // verified.
  absl::Status Fetch(block::SessionId session, const FetchRequest& request,
                     const Patience& patience, FetchSink* sink);

  absl::StatusOr<block::ReservePlan> Reserve(block::SessionId session,
                                             const ReserveRequest& request);
  // Takes a piece into the extent of its page, allocated at the page's first piece.
  // ResourceExhausted: no room, and nothing to evict before the deadline. InvalidArgument for a sum
  // that differs: what came of the page is dropped, it may be sent again.
  absl::Status PutPage(block::SessionId session, block::ReservationId reservation,
                       const PagePiece& piece, const Patience& patience);
  // Waits for room, or for the SSD, for kCommitPatience at most. What was published before the
  // caller gave up stays.
  absl::StatusOr<block::CommitAnswer> Commit(block::SessionId session, const CommitRequest& request,
                                             const Patience& patience = base::Deadline::max());
  // NotFound unless the session holds it. Counts as a use.
  absl::Status CheckReservation(block::SessionId session, block::ReservationId reservation) const;
  absl::Status Abandon(block::SessionId session, block::ReservationId reservation);

  // Keeps what is cached of the sequence, loaded first, until its time is up, Unpin or Clear; the
  // session may end before. 0: no end. Pinning the same sequence again replaces the pin.
  // ResourceExhausted beyond the quota of leased and pinned bytes.
  absl::StatusOr<Pinned> Pin(block::SessionId session, const Request& request,
                             std::chrono::milliseconds ttl, const Patience& patience);
  // Both return the bytes that were pinned. NotFound when there is no such pin (any more).
  absl::StatusOr<uint64_t> Unpin(block::PinId pin);
  absl::StatusOr<uint64_t> Unpin(block::SessionId session, const Request& request);
  std::vector<block::PinInfo> ListPins() const;

  // Every space when `space` is null. NotFound for an unknown id.
  struct Cleared {
    uint32_t spaces = 0;
    uint64_t bytes = 0;
    uint64_t waiting_ssd_bytes = 0;  // of these, on SSD until their segments age out
    // The disk has not taken yet that they were cleared: it is tried again. This process serves
    // nothing from before; one that starts before it is taken may.
    bool border_waits = false;
    // Other hosts have not heard of it yet: it is tried again, and meanwhile this process uses
    // nothing that they stored.
    bool remote_waits = false;
  };
  absl::StatusOr<Cleared> Clear(const block::SpaceId* space);
  // One step of a purge, which leaves no byte of what is cleared in the arena and in the store's
  // files; the caller carries the cursor. The first step clears, and zeroes free memory; each
  // further one looks at a segment, writes again what other spaces have in it and removes its
  // files. What is leased is zeroed when it is released. Going on after a restart is right, from
  // the start too.
  struct PurgeProgress {
    Cleared cleared;             // by the first step
    uint64_t next = 0;           // where to go on; 0 = everything was purged
    uint64_t passed_bytes = 0;   // of total_bytes, by this step
    uint64_t total_bytes = 0;    // arena and files, as they are now
    uint64_t removed_bytes = 0;  // of files
    uint64_t rewritten_bytes = 0;
    uint64_t leased_bytes = 0;  // cleared, and still leased
  };
  absl::StatusOr<PurgeProgress> Purge(const block::SpaceId* space, uint64_t cursor);
  // The last 4,096 answers of Acquire, fewer of a very small budget.
  block::PastAnswers Why(const block::WhyQuery& query) const;
  // What the remembered answers had in common, of one space or of all (null): at most `most`
  // prefixes. Looks at up to 131,072 blocks, the newest answers first.
  block::HotPrefixes ListPrefixes(const block::SpaceId* space, uint32_t most) const;
  // Other budgets, until the next start; 0 leaves one as it is. A smaller RAM budget evicts and
  // gives whole slabs back to the system, those with leased or pinned pages later; a smaller SSD
  // budget drops the oldest segments before this returns. FailedPrecondition where there is no
  // shared arena, or no SSD tier, to resize.
  absl::StatusOr<block::BudgetState> SetBudgets(uint64_t ram_bytes, uint64_t ssd_bytes);
  // Replaces the limits of a space. True: they are remembered across restarts. NotFound for an
  // unknown space; ResourceExhausted when all floors would be more than 80 % of the RAM tier.
  absl::StatusOr<bool> SetSpaceLimits(const block::SpaceId& space,
                                      const block::SpaceLimits& limits);
  FlushResult Flush(const Patience& patience);
  // A hint that the request will come: its pages are read from SSD, behind what anybody waits
  // for, without a lease and without waiting for room. At most an eighth of the arena is under
  // way.
  absl::StatusOr<Prefetched> Prefetch(block::SessionId session, const Request& request);
  // Reads and checks a slab of the arena or a segment of the SSD tier from `cursor` on (0 = the
  // start), at most `bytes_per_s` (0 = no limit) until the deadline. A bad page is dropped and
  // counted; one that somebody holds is left out. One step at a time, others wait.
  VerifyProgress Verify(uint64_t cursor, uint64_t bytes_per_s, const Patience& patience);
  block::Stats GetStats() const;
  // GetHoldings sums all spaces up; it costs a look.
  struct Holdings {
    uint64_t entries = 0;  // ends of sequences
    uint64_t ram_payload_bytes = 0;
  };
  Holdings GetHoldings() const;
  std::vector<block::SpaceSummary> ListSpaces() const;
  // The spaces that other hosts told of in the last hours and that this one does not know, newest
  // first; spaces that differ in their salts alone are one. Waits for the store that they
  // share; its error, if it does not answer. Requires: has_remote().
  absl::StatusOr<std::vector<ToldSpace>> SpacesOfOthers(const Patience& patience) const;
  // For the service: counts and times what the cache does not see ("rpc.acquire", 120 us;
  // "refused.bad_request").
  void Count(const char* counter, uint64_t by = 1);
  void CountLatency(const char* name, uint64_t us);

 private:
  explicit Cache(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace prefixd::cache
