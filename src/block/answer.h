// What the cache answers: match, leased pages, plans, stats. cache/ fills these, wire/ translates
// them, nobody else decides. Plain values.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "block/arena_file.h"
#include "block/ids.h"
#include "block/space_identity.h"

namespace prefixd::block {

// A label derived from the tree, before max_tokens cuts.
enum class MatchKind : uint8_t {
  kExact = 1,          // a stored sequence ends exactly where the request ends
  kSupersequence = 2,  // the request is a proper prefix of something stored
  kPrefix = 3,         // a stored sequence ended exactly at matched_tokens < request
  kLcp = 4,            // the request leaves a stored sequence in its middle
  kNone = 5,           // nothing matched
};

enum class EndReason : uint8_t {
  kRequestEnded = 1,
  kDiverged = 2,  // stored sequences go on otherwise
  kEvicted = 3,   // the next block was here once
  kNeverStored = 4,
  kIndexLoading = 5,
};

enum class ShortenReason : uint8_t {
  kEvicted = 1,
  kNoStateSnapshot = 2,
  kWindowGone = 3,
  kCorrupt = 4,
  kFormat = 5,
  kAtomicContent = 6,
  kRamFull = 7,
  kLeaseQuota = 8,
  kDeadline = 9,
  kSlowerThanPrefill = 10,
  kIoError = 11,
  kIndexLoading = 12,
  kMaxTokens = 13,
  kCommonLength = 14,  // another item of the set has no more
};

inline constexpr uint32_t kAllGroups = ~uint32_t{0};
inline constexpr uint32_t kNoLimit = ~uint32_t{0};

struct Shortening {
  uint32_t group = kAllGroups;  // the group that decided
  ShortenReason reason = ShortenReason::kEvicted;
  uint32_t tokens_lost = 0;
  bool operator==(const Shortening&) const = default;
};

struct MatchAnswer {
  uint32_t matched_tokens = 0;     // longest common prefix with anything stored
  uint32_t restorable_tokens = 0;  // <= matched_tokens; what a lease covers
  uint32_t pending_tokens = 0;     // beyond restorable: announced by a reservation of somebody else
  MatchKind kind = MatchKind::kNone;
  EndReason ended_by = EndReason::kNeverStored;
  uint32_t diverged_sequences =
      0;  // kDiverged: how many stored ends go on otherwise (counted up to 1,000)
  std::vector<Shortening> shortened_by;
  uint64_t ram_bytes = 0;  // pages of [0, restorable_tokens) by the tier they are in
  uint64_t ssd_bytes = 0;
  uint64_t load_us = 0;  // estimate: from asking for the pages to the last byte at the worker
};

// Of a sliding group a block without a page in the lease has rung kNoLimit and page_tokens 0. Of a
// state group there is one: the snapshot at the end of the lease, whose rung, page_tokens and
// tokens are its offset in the block.
struct LeasedPage {
  uint32_t group = 0;
  uint32_t rung = 0;
  uint32_t first_token = 0;     // of the block, in the sequence
  uint32_t page_tokens = 0;     // slots of the stored page
  uint32_t tokens = 0;          // slots that belong to the lease, <= page_tokens
  bool in_ram = false;          // readable now
  uint64_t offset = kNoOffset;  // in the arena's data; kNoOffset while unknown or not shared
  bool absent() const { return rung == kNoLimit; }
};

// Places of pages that are all readable now, each group in one rung: what many pages are told by.
struct PageTable {
  std::vector<uint32_t> groups;   // ascending; empty: nothing is told
  std::vector<uint32_t> rungs;    // of each group
  uint32_t first_token = 0;       // of the first block
  uint32_t last_page_tokens = 0;  // slots of the last block's pages; those before have block_tokens
  std::vector<uint64_t> offsets;  // in the arena's data: group by group, a column of blocks each
};

enum class BlockState : uint8_t { kPresent = 1, kYours = 2, kPending = 3 };

struct BlockPlan {
  uint32_t first_token = 0;
  uint32_t tokens = 0;
  BlockState state = BlockState::kYours;
  std::vector<uint32_t> rungs;  // per group of the space: which rung to write; kNoLimit = not
                                // wanted, as of all states
  std::vector<uint64_t>
      seeds{};  // per group: CheckSeed of that page; 0 = none. Empty: not asked for
};

inline constexpr uint32_t kMaxSnapshots = 64;  // of one chain

struct ReservePlan {
  ReservationId reservation;
  std::vector<BlockPlan> blocks;
  // Positions, ascending, at which a snapshot of every state group is wanted.
  std::vector<uint32_t> snapshot_tokens{};
};

enum class StoreResult : uint8_t { kStored = 1, kDuplicate = 2, kRefused = 3 };

struct BlockResult {
  uint32_t first_token = 0;
  StoreResult result = StoreResult::kStored;
  std::string reason;  // of a refusal
};

// Where what was committed stands at least when the answer comes.
enum class Durability : uint8_t {
  kUnspecified = 0,
  kRam = 1,  // readable; survives kill -9 in a shared arena
  kSsd = 2,  // its segment is ingested and synced
};

struct CommitAnswer {
  uint32_t stored_tokens = 0;
  uint32_t duplicate_tokens = 0;
  std::vector<BlockResult> blocks;
  // When the writer asked for it: a lease on the published pages, in the arena from now on.
  LeaseId lease;
  std::vector<LeasedPage> pages;             // group by group in position order
  uint32_t first_block = 0;                  // that `pages` begin with
  Durability durability = Durability::kRam;  // of the sequence up to the committed token
};

// A model that a worker serves with caches that nobody shares.
struct NotShared {
  std::string model;
  std::string reason;
};

// A session as people see it.
struct SessionInfo {
  SessionName session;
  std::string worker;
  uint32_t slot = kNoSlot;  // kNoSlot: does not map the arena
  uint64_t pid = 0;         // 0 = unknown
  bool attached = false;    // its stream is open; false: kept because its process may be reading
  double age_s = 0;
  uint64_t leases = 0, leased_bytes = 0, reservations = 0;
  uint64_t staging_bytes = 0;
  std::vector<NotShared> not_shared{};  // by model
};
struct LeaseInfo {
  LeaseId lease;
  SessionId session;     // to the index; people see the next
  SessionName holder{};  // to people
  SpaceId space{};
  uint32_t tokens = 0;
  uint64_t pages = 0, bytes = 0;
  double age_s = 0;
};

struct PinInfo {
  PinId pin;
  SpaceId space{};
  std::string worker;  // that made it
  uint32_t tokens = 0;
  uint64_t pages = 0, bytes = 0;
  double age_s = 0;
  double left_s = 0;  // 0: it has no end
};

// What one space may take. Zeros: nothing is set.
struct SpaceLimits {
  uint64_t ram_floor_bytes = 0;    // extents; below it nothing is evicted for others
  uint64_t ram_ceiling_bytes = 0;  // extents; above it its own coldest go
  uint64_t ssd_ceiling_bytes = 0;  // pages; above it the coldest copies are forgotten
  uint64_t ttl_ms = 0;             // unused for so long: forgotten
  uint64_t ssd_floor_bytes = 0;    // pages; below it copies are written again, not aged out
  bool operator==(const SpaceLimits&) const = default;
};

struct SpaceSummary {
  SpaceHandle handle;
  SpaceId id{};
  SpaceIdentity identity;
  uint64_t blocks = 0;         // with pages in some tier
  uint64_t holes = 0;          // kept for their descendants
  uint64_t ends = 0;           // declared sequence ends
  uint64_t stored_tokens = 0;  // sum of block tokens, each block once
  uint64_t ram_payload_bytes = 0, ram_extent_bytes = 0;
  uint64_t ssd_payload_bytes = 0, ssd_page_bytes = 0;
  uint64_t dirty_bytes = 0;  // in RAM only
  SpaceLimits limits;
};

// Budgets as they are, and what is still to be given back after one shrank.
struct BudgetState {
  uint64_t ram_budget_bytes = 0, ram_used_bytes = 0;
  uint64_t ram_over_bytes = 0;  // in slabs that run empty as leases end
  uint64_t ssd_budget_bytes = 0, ssd_file_bytes = 0;
};

// An answer of Acquire as it is remembered. No token ids.
struct PastAnswer {
  std::string request_id;  // the worker's, or one that was made up
  SpaceId space{};
  std::string worker;
  double age_s = 0;
  uint32_t requested_tokens = 0;
  MatchAnswer match;
  // Where the time went.
  uint64_t wait_us = 0;   // for tokens that somebody else had announced
  uint64_t match_us = 0;  // finding, and taking hold
  uint64_t room_us = 0;   // making room for pages on SSD, and starting their reads
  // What the worker told when it released the lease.
  uint32_t used_tokens = 0;
  uint64_t load_us = 0, first_token_us = 0;
};
struct WhyQuery {
  std::string request_id;  // empty: any
  uint32_t last = 20;      // at most so many
  double below = 0;        // restorable of less than this share of the request; 0: any
};
struct PastAnswers {
  std::vector<PastAnswer> answers;  // newest first
  uint64_t remembered = 0;
};

// Power-of-two buckets of microseconds: bucket i counts values in [2^i, 2^(i+1)).
struct LatencyHistogram {
  std::array<uint64_t, 32> buckets{};
  uint64_t count = 0;
  uint64_t sum_us = 0;
};

struct NamedCount {
  std::string name;
  uint64_t value = 0;
};
struct NamedLatency {
  std::string name;
  LatencyHistogram histogram;
};

struct Stats {
  uint64_t epoch = 0;
  double uptime_s = 0;
  std::string version;
  // Gauges.
  uint64_t ram_budget_bytes = 0;
  std::vector<NamedCount> ram_parts;  // accounted parts; their sum is <= ram_budget_bytes
  uint64_t ssd_budget_bytes = 0;      // 0 = no SSD tier
  uint64_t ssd_file_bytes = 0;        // as the filesystem counts them
  uint64_t dirty_bytes = 0;
  uint64_t sessions = 0, leases = 0, leased_bytes = 0, reservations = 0;
  uint64_t pins = 0, pinned_bytes = 0;
  uint64_t snapshot_bytes = 0, snapshot_share_bytes = 0;  // of states, in RAM
  // Counters since start, named "tokens.requested", "tokens.matched", "match.exact",
  // "shortened.evicted", ...
  std::vector<NamedCount> counters;
  double seconds_saved = 0;  // may be negative
  std::vector<NamedLatency> latencies;
  std::vector<SpaceSummary> spaces;
};

}  // namespace prefixd::block
