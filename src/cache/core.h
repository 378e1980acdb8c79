// What the verbs of the cache share. Internal to the room.
//
// Locks, outermost first: Reservation::mutex (one commit or piece of one reservation at a time),
// Core::mutex (the tables). Neither the tables' mutex nor any room's own is held across a call into
// another room or across I/O.
#pragma once
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "block/page_layout.h"
#include "cache/budget.h"
#include "cache/cache.h"
#include "cache/counters.h"
#include "cache/load_model.h"
#include "index/prefix_index.h"
#include "ram/arena.h"
#include "ssd/segment_store.h"

namespace prefixd::cache {

// A space as opened; never changes.
struct SpaceInfo {
  block::SpaceHandle handle;
  block::SpaceId id{};
  block::SpaceIdentity identity;
  uint64_t FullPageBytes(uint32_t group, uint32_t rung) const {
    return block::LayoutOfPage(identity.groups[group], rung, identity.block_tokens).page_bytes;
  }
};
using SpacePtr = std::shared_ptr<const SpaceInfo>;

// A lease of the index. Ends it when the last user lets go: a Fetch under way keeps its pages
// although the session released them or ended.
class Lease {
 public:
  Lease(Core* owner, block::LeaseId lease) : owner_(owner), lease_(lease) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  block::SessionId session;
  SpacePtr space;
  std::vector<index::PageInfo> pages;  // group by group in position order
  uint32_t tokens = 0;
  uint32_t ssd_tokens = 0;  // of these, in blocks that had a page outside RAM at Acquire
  uint64_t ram_bytes = 0, ssd_bytes = 0;  // at Acquire

 private:
  Core* const owner_;
  const block::LeaseId lease_;
};
using LeasePtr = std::shared_ptr<const Lease>;

// A page whose pieces are arriving; owns its extent until it is published or dropped.
struct StagedPage {
  uint32_t rung = 0;
  block::Extent extent;
  uint64_t page_bytes = 0;
  uint64_t received = 0;
};

struct Reservation {
  block::SessionId session;
  SpacePtr space;
  index::Reserved reserved;
  std::vector<uint32_t> groups;  // that this writer stores, ascending
  base::Mutex mutex;
  std::map<std::pair<size_t, uint32_t>, StagedPage> staged
      PREFIXD_GUARDED_BY(mutex);              // by (block, group)
  size_t done PREFIXD_GUARDED_BY(mutex) = 0;  // blocks committed so far
  bool closed PREFIXD_GUARDED_BY(mutex) = false;
};
using ReservationPtr = std::shared_ptr<Reservation>;

// A page on its way from SSD: kPromoting in the index, its extent allocated.
struct Promotion {
  index::PageInfo page;
  block::Extent extent;
  uint64_t queued_us = 0;
};

struct Core {
  Core(const Options& options, const BudgetShares& shares);
  ~Core();
  absl::Status Start();

  // --- tables (open_space.cc, sessions.cc) ---
  bool HasSession(block::SessionId session) const PREFIXD_EXCLUDES(mutex);
  absl::StatusOr<SpacePtr> FindSpace(block::SpaceHandle handle) const PREFIXD_EXCLUDES(mutex);
  absl::StatusOr<LeasePtr> FindLease(block::SessionId session, block::LeaseId lease) const
      PREFIXD_EXCLUDES(mutex);
  absl::StatusOr<ReservationPtr> FindReservation(block::SessionId session,
                                                 block::ReservationId id) const
      PREFIXD_EXCLUDES(mutex);
  SpacePtr AddSpace(const block::SpaceIdentity& identity, bool* created) PREFIXD_EXCLUDES(mutex);
  absl::Status SaveSpaces() PREFIXD_EXCLUDES(mutex);  // identities not on SSD yet
  absl::Status CheckServable(const block::SpaceIdentity& identity) const;
  void DropReservation(block::ReservationId id) PREFIXD_EXCLUDES(mutex);

  // --- commit (commit.cc) ---
  void MakeIndexRoom(base::Deadline deadline);

  // --- room (allocate.cc) ---
  // An extent for a page, evicting, spilling or emptying a slab as needed. ResourceExhausted at the
  // deadline.
  absl::StatusOr<block::Extent> AllocateExtent(uint64_t page_bytes, uint64_t full_page_bytes,
                                               base::Deadline deadline);
  bool EvictSomething(uint64_t extent_bytes, uint64_t* evicted_bytes);
  bool WaitForRoom(base::Deadline deadline);
  void FreeTaken();

  // --- promotion (promote.cc) ---
  void Promote(const Promotion& promotion);
  void GiveUpPromotion(const index::PageInfo& page, const absl::Status& status);
  void PromotionLoop();

  // --- spill (spill.cc, recover.cc) ---
  // One segment. Bytes spilled; 0 = nothing dirty, or no room without dropping what was written
  // after `round_start`.
  absl::StatusOr<uint64_t> SpillOnce(uint64_t round_start);
  absl::Status WriteSegment(std::span<index::SpillBlock> blocks,
                            std::vector<index::SpilledPage>* spilled);
  bool MakeSsdRoom(uint64_t bytes, uint64_t keep_after);
  void PauseSpilling() PREFIXD_REQUIRES(spill_mutex);
  void SpillLoop();
  bool CleanBelow(uint64_t eighths) const;
  absl::Status Recover();

  void Log(LogLevel level, const std::string& line) const {
    if (options.log) options.log(level, line);
  }
  void CountMatch(const block::MatchAnswer& answer, size_t requested_tokens);

  const Options options;
  const BudgetShares shares;
  const uint64_t epoch;
  const int64_t started_us;
  Counters counters;
  LoadModel load_model;
  std::unique_ptr<ram::Arena> arena;
  std::unique_ptr<index::PrefixIndex> index;
  std::unique_ptr<ssd::SegmentStore> store;  // null without an SSD tier

  mutable base::Mutex mutex;  // the tables
  absl::flat_hash_map<block::SessionId, std::string> sessions PREFIXD_GUARDED_BY(mutex);
  absl::flat_hash_map<block::SpaceHandle, SpacePtr> spaces PREFIXD_GUARDED_BY(mutex);
  std::map<block::SpaceId, SpacePtr> spaces_by_id PREFIXD_GUARDED_BY(mutex);
  std::vector<SpacePtr> unsaved_spaces PREFIXD_GUARDED_BY(mutex);  // without their identity on SSD
  absl::flat_hash_map<block::LeaseId, LeasePtr> leases PREFIXD_GUARDED_BY(mutex);
  absl::flat_hash_map<block::ReservationId, ReservationPtr> reservations PREFIXD_GUARDED_BY(mutex);

  std::atomic<uint64_t> in_flight_bytes{0};

  base::Mutex promote_mutex;
  base::CondVar promote_wake;
  std::deque<Promotion> promote_queue PREFIXD_GUARDED_BY(promote_mutex);
  bool promote_stop PREFIXD_GUARDED_BY(promote_mutex) = false;

  base::Mutex spill_mutex;
  base::CondVar spill_wake;  // there is work
  base::CondVar spill_done;  // a segment was written, or failed
  bool spill_wanted PREFIXD_GUARDED_BY(spill_mutex) = false;
  bool spill_stop PREFIXD_GUARDED_BY(spill_mutex) = false;
  uint64_t spill_rounds PREFIXD_GUARDED_BY(spill_mutex) = 0;
  std::atomic<bool> ssd_failing{false};
  base::Mutex segment_mutex;  // one segment is written at a time

  std::vector<std::thread> threads;
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

const char* ToString(block::MatchKind kind);
const char* ToString(block::ShortenReason reason);
const char* ToString(block::EndReason reason);

}  // namespace prefixd::cache
