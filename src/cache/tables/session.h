// What a session owns, and what leases and reservations are to the cache. Internal to the room.
#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

#include "base/checksum.h"
#include "base/peer.h"
#include "block/page_layout.h"
#include "cache/cache.h"
#include "cache/context.h"
#include "cache/tables/quota.h"
#include "cache/tables/space_tokens.h"
#include "index/prefix_index.h"
#include "ram/arena.h"
#include "ram/slots.h"
#include "ram/staging.h"

namespace prefixd::cache {

// A space as it was opened; only `saved` and `tokens` ever change. It is known while the table of
// Spaces has it. Whoever else has a pointer keeps it from being forgotten.
struct SpaceInfo {
  block::SpaceHandle handle;
  block::SpaceId id{};
  block::SpaceIdentity identity;
  uint32_t ordinal = ram::Arena::kNoSpace;  // its place in the arena's space table
  uint64_t memory_bytes = 0;                // about what it costs the index and the cache
  mutable std::atomic<bool> saved{false};   // its identity is on SSD
  bool regular = true;                      // every group is full attention
  block::BlockHasher hasher{};              // the cache's
  mutable TokensOfSpace tokens;
  bool IsState(uint32_t group) const {
    return identity.groups[group].kind == block::LayerKind::kState;
  }
  uint64_t FullPageBytes(uint32_t group, uint32_t rung) const {
    return block::LayoutOfPage(identity.groups[group], rung, identity.block_tokens).page_bytes;
  }
};
using SpacePtr = std::shared_ptr<const SpaceInfo>;

// A slot in use. It is free again when the session and the last of its leases let go of it: until
// then marks of pages may carry its bit.
class SlotHold {
 public:
  SlotHold(Context* owner, uint32_t slot) : owner_(owner), slot_(slot) {}
  ~SlotHold();
  SlotHold(const SlotHold&) = delete;
  SlotHold& operator=(const SlotHold&) = delete;
  uint32_t slot() const { return slot_; }

 private:
  Context* const owner_;
  const uint32_t slot_;
};
using SlotPtr = std::shared_ptr<const SlotHold>;  // null: the session does not map the arena

// Why caches of a model are not shared. At least one of the two is not empty.
struct NotSharedNote {
  std::string said;     // by the worker
  std::string refused;  // the sentence of the last refused OpenSpace
  const std::string& reason() const { return said.empty() ? refused : said; }
};

// Plain data. The mutex of Sessions guards it, but for what is fixed before the session is in the
// table (const members, key_hash, begun_us, charge_lease, slot), what the mutex of Spaces guards
// (the spaces that it opened) and the event callback.
struct Session {
  Session(block::SessionId id, std::string worker, std::string library = {})
      : id(id), worker(std::move(worker)), library(std::move(library)) {}

  const block::SessionId id;
  const std::string worker;
  const std::string library;
  base::Digest256 key_hash{};  // the key itself is the worker's alone
  int64_t begun_us = 0;
  SessionOptions::ChargeLease charge_lease;  // null: its leases are not charged
  std::optional<base::Peer> peer;            // the process that attached; nullopt: not known yet
  SlotPtr slot;
  std::shared_ptr<ram::Staging> staging;  // null = none
  bool attached = true;                   // its stream is open
  bool files_given = false;
  bool opening_files = false;  // its slot is about to be locked and must not be freed
  struct OpenSpace {
    SpacePtr space;
    mutable uint64_t used = 0;  // larger = used later
  };
  absl::flat_hash_map<block::SpaceHandle, OpenSpace> spaces;  // open ones; guarded by Spaces
  uint64_t spaces_bytes = 0;                                  // their memory_bytes; as above
  absl::flat_hash_set<block::LeaseId> leases;
  absl::flat_hash_set<block::ReservationId> reservations;
  std::map<std::string, NotSharedNote> not_shared;  // by model, at most kMaxNotShared
  std::atomic<bool> over{false};  // no longer attached: whoever waits for it gives up
  // Its part of the budgets that quota.h shares out.
  std::atomic<uint64_t> announced_bytes{0}, arriving_bytes{0}, partial_bytes{0};

  uint64_t pid() const { return peer.has_value() ? peer->pid : 0; }
  uint32_t slot_number() const { return slot == nullptr ? block::kNoSlot : slot->slot(); }

  // Held while the callback runs, so that none runs after EndSession. The callback goes up to the
  // daemon, which must not call back.
  base::Mutex event_mutex;
  std::function<void(const SessionEvent&)> on_event PREFIXD_GUARDED_BY(event_mutex);
};
using SessionPtr = std::shared_ptr<Session>;
block::SessionId RandomSessionId();

// An extent that no page uses, but that a worker of an earlier daemon may be reading.
class KeptExtent {
 public:
  KeptExtent(Context* owner, block::Extent extent) : owner_(owner), extent_(extent) {}
  ~KeptExtent();
  KeptExtent(const KeptExtent&) = delete;
  KeptExtent& operator=(const KeptExtent&) = delete;
  uint64_t bytes() const { return extent_.bytes; }

 private:
  Context* const owner_;
  const block::Extent extent_;
};

// What a lease is worth and what it holds.
struct LeaseFacts {
  uint32_t tokens = 0;      // usable: fewer than leased after a page failed
  uint32_t ssd_tokens = 0;  // of these, in blocks that had a page outside RAM when they were leased
  uint32_t far_tokens = 0;  // of these, in blocks that had a page on its way from another host
  uint64_t ram_bytes = 0, ssd_bytes = 0, far_bytes = 0;  // when leased
  uint64_t pages = 0;
};

// A lease of the index. It ends when the last user lets go: a running Fetch, or bytes that gRPC
// still sends, keep the pages although the session released the lease or ended.
class Lease {
 public:
  Lease(Context* owner, block::LeaseId in_index, SlotPtr slot)
      : owner_(owner), in_index_(in_index), slot_(std::move(slot)) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  block::LeaseId in_index() const { return in_index_; }  // none: it holds only what `others` hold
  LeaseFacts facts() const PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    return facts_;
  }
  void SetFacts(const LeaseFacts& facts) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    facts_ = facts;
  }
  // From now on its pages are usable up to `tokens` only.
  void CutTo(uint32_t tokens) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    facts_.tokens = std::min(facts_.tokens, tokens);
  }

  // Adds what it holds, according to the list of the index.
  void AddTo(const absl::flat_hash_map<block::LeaseId, block::LeaseInfo>& in_index,
             block::LeaseInfo* info) const;

  // Set before the lease is shared.
  SpacePtr space;  // null if it holds what a session of an earlier daemon held
  int64_t begun_us = 0;
  index::BlockRef last_full{};          // of index::Acquired
  std::atomic<uint64_t> answer{0};      // the last answer about this lease, in the history
  std::atomic<double> prefill_rate{0};  // tokens/s as its last lookup told; 0: unknown
  std::shared_ptr<void> charge;         // of SessionOptions::charge_lease
  // What a resumed session held before, lease by lease, and extents that no page uses any more.
  std::vector<std::shared_ptr<const Lease>> others;
  std::vector<std::shared_ptr<const KeptExtent>> kept;

 private:
  Context* const owner_;
  const block::LeaseId in_index_;
  const SlotPtr slot_;  // destroyed after the destructor gave the pages up
  mutable base::Mutex mutex_;
  LeaseFacts facts_ PREFIXD_GUARDED_BY(mutex_);
};
using LeasePtr = std::shared_ptr<Lease>;

// A page whose bytes are arriving. It owns its extent until it is published or dropped.
struct ArrivingPage {
  uint32_t rung = 0;
  block::Extent extent;
  uint64_t page_bytes = 0;
  uint64_t received = 0;
  uint64_t check = 0;                       // 0 = not computed yet
  std::shared_ptr<base::Xxh3Stream> sum{};  // its check so far, while Put brings it
  std::shared_ptr<const Charge> charge{};   // for its extent, if Put brings it
  std::shared_ptr<const Charge> partial{};  // the same, until it is whole
};

// Block, group, and the offset of a snapshot in its block (0 for other pages).
using PageKey = std::tuple<size_t, uint32_t, uint32_t>;

struct Reservation {
  SessionPtr session;
  SpacePtr space;
  index::Reserved reserved;
  std::vector<uint32_t> groups;      // that this writer stores, ascending
  std::vector<block::Token> tokens;  // of the whole sequence, for the records of its pages
  std::vector<block::ContentKey> content;
  std::shared_ptr<const Charge> announced;  // for the bytes of these
  std::atomic<bool> cancelled{false};       // waits for its room end
  std::atomic<int64_t> used_us{0};          // when a call named it last
  base::Mutex mutex;
  // Extents of pages that arrived. A commit that times out leaves them here, so that it can be
  // tried again; the end of the reservation frees them.
  std::map<PageKey, ArrivingPage> arriving PREFIXD_GUARDED_BY(mutex);
  size_t done PREFIXD_GUARDED_BY(mutex) = 0;  // blocks committed so far
  bool closed PREFIXD_GUARDED_BY(mutex) = false;

  block::PageName NameOf(size_t block_index, uint32_t group, uint32_t rung) const;
  PageKey KeyOf(size_t block_index, uint32_t group, uint32_t rung) const {
    return {block_index, group, space->IsState(group) ? rung : 0};
  }
  // InvalidArgument unless the block may have a page of the group in that rung.
  absl::Status CheckRung(size_t block_index, uint32_t group, uint32_t rung) const;
  // The block that a page is recorded under. A snapshot has one of its own tokens.
  struct Recorded {
    index::BlockName name;
    uint32_t first_token = 0, tokens = 0;
  };
  Recorded RecordedOf(size_t block_index, uint32_t group, uint32_t rung) const;
};
using ReservationPtr = std::shared_ptr<Reservation>;

}  // namespace prefixd::cache
