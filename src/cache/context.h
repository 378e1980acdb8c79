// What all parts of the cache share: options, budgets, counters, and the tiers themselves. It
// decides nothing. Internal to the room.
//
// The lock order of the room, and the calls that go up, are in src/README.md ("Locks").
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"

#include "cache/cache.h"
#include "cache/counters.h"
#include "cache/hash_key.h"
#include "cache/late_ptr.h"
#include "cache/phase_times.h"
#include "index/prefix_index.h"
#include "ram/arena.h"
#include "ram/budget.h"
#include "ram/slots.h"
#include "ram/staging.h"
#include "ssd/segment_store.h"

namespace prefixd::cache {

// Thread-safe once Open() has returned: the rest is constant, atomic or has locks of its own. Every
// part holds a pointer to it, and none outlives it.
struct Context {
  explicit Context(const Options& options);
  // Finds or makes the key of block hashes, opens the arena (private memory if the file cannot be
  // used) and makes the empty index. Call it once, before any part works.
  absl::Status Open();

  int64_t Now() const { return options.clock->MonotonicMicros(); }
  void Log(LogLevel level, const std::string& line) const {
    if (options.log) options.log(level, line);
  }
  // How long to wait for locks of a process that is ending; waits are logged and counted.
  base::LockWait LockWait();
  HashKeyPlaces KeyPlaces() const;
  bool has_ssd() const { return options.ssd_budget_bytes > 0; }
  // Whether eviction may give up pages that are not on SSD.
  bool MayDropDirty() const { return store == nullptr || ssd_failing.load(); }
  index::PrefixIndex::Limits IndexLimits(uint64_t index_bytes) const;  // of the arena as it is
  uint64_t SnapshotShare(uint64_t arena_bytes) const {
    return static_cast<uint64_t>(options.snapshot_share * static_cast<double>(arena_bytes));
  }
  // Gives the extents that the index gave up back to the arena.
  void FreeTaken();
  // Counts pages that the index gave up.
  void CountEvicted(const index::Evicted& evicted);
  // Lease ids as callers see them: those of another daemon's life mean nothing in this one.
  block::LeaseId PublicId(block::LeaseId in_index) const {
    return block::LeaseId{in_index.value + lease_base};
  }
  // Returns a new session of the index that belongs to no worker, so that no quota counts its
  // leases.
  block::SessionId NewOwner() {
    return block::SessionId{next_owner.fetch_add(1) | uint64_t{1} << 63};
  }

  const Options options;
  const uint64_t epoch;
  const uint64_t lease_base;
  const int64_t started_us;
  // Set when the cache is destroyed: what sessions hold stays held in the arena's file, and the
  // next daemon goes by it.
  std::atomic<bool> stopping{false};
  Counters counters;
  AcquirePhases phases;
  base::HoldGauge longest_hold;  // of the tables' mutexes

  ram::BudgetShares shares;             // as cut by Open
  ram::BudgetShares SharesNow() const;  // the index's is what it has grown to
  std::atomic<uint64_t> ram_budget_bytes, ssd_budget_bytes;
  // The shares as they are now. Room changes the index's.
  std::atomic<uint64_t> index_share_bytes{0}, index_least_bytes{0}, index_most_bytes{0};
  std::atomic<uint64_t> in_flight_share_bytes{0};
  std::atomic<uint64_t> in_flight_bytes{0};  // in the hands of calls: pieces, records, buffers
  // Found by requests or stored, since the write budget was told of them.
  std::atomic<uint64_t> asked_bytes{0};
  std::atomic<uint64_t> far_asked_bytes{0};  // the same for the far tier's budget
  void CountAsked(uint64_t bytes) {
    asked_bytes += bytes;
    far_asked_bytes += bytes;
  }
  std::atomic<uint64_t> next_owner{1};

  block::HashKey hash_key{};
  block::BlockHasher hasher{};
  std::unique_ptr<ram::Arena> arena;
  bool arena_held = false;                    // another process had the arena's file at the start
  std::unique_ptr<ram::Slots> slots;          // null unless the arena is shared
  std::unique_ptr<ram::StagingPool> staging;  // null unless the arena is shared
  std::unique_ptr<index::PrefixIndex> index;
  LatePtr<ssd::SegmentStore> store;      // null without an SSD tier, and until it could be opened
  std::atomic<bool> ssd_failing{false};  // the last segment could not be written
  std::atomic<bool> unverified_left{false};  // pages of an earlier daemon that nobody checked yet

 private:
  absl::Status OpenArena();
};

// Counts bytes that are in a call's hands, for as long as it lives.
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

// Whether the page has to be read from SSD, by the caller or by somebody who is reading it.
inline bool NeedsSsd(const index::PageInfo& page) {
  return page.state == index::PageState::kSsd ||
         (page.state == index::PageState::kPromoting && !page.extent && page.ssd_sequence != 0);
}
// Whether the page is on its way from another host.
inline bool NeedsFar(const index::PageInfo& page) {
  return page.state == index::PageState::kPromoting && !page.extent && page.ssd_sequence == 0;
}

}  // namespace prefixd::cache
