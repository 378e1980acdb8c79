// What the cache answers: match, leased pages, plans, stats. cache/ fills these structs and wire/
// translates them; no other room decides what they hold. Plain values.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "block/arena_file.h"
#include "block/ids.h"
#include "block/space_identity.h"

namespace prefixd::block {

// How the request relates to the tree, before max_tokens cuts the match.
enum class MatchKind : uint8_t {
  kExact = 1,          // a stored sequence ends exactly where the request ends
  kSupersequence = 2,  // the request is a proper prefix of something stored
  kPrefix = 3,         // a stored sequence ended exactly at matched_tokens < request
  kLcp = 4,            // the request leaves a stored sequence before the sequence ends
  kNone = 5,           // nothing matched
};

enum class EndReason : uint8_t {
  kRequestEnded = 1,
  kDiverged = 2,  // stored sequences go on with other tokens
  kEvicted = 3,   // the next block was stored, but was evicted
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
  kCommonLength = 14,  // another item of the set restores fewer tokens
};

inline constexpr uint32_t kAllGroups = ~uint32_t{0};
inline constexpr uint32_t kNoLimit = ~uint32_t{0};

struct Shortening {
  uint32_t group = kAllGroups;  // the group that caused it
  ShortenReason reason = ShortenReason::kEvicted;
  uint32_t tokens_lost = 0;
  bool operator==(const Shortening&) const = default;
};

struct MatchAnswer {
  uint32_t matched_tokens = 0;     // longest common prefix with anything stored
  uint32_t restorable_tokens = 0;  // tokens that a lease covers, <= matched_tokens
  uint32_t pending_tokens = 0;     // further tokens that another session's reservation announces
  MatchKind kind = MatchKind::kNone;
  EndReason ended_by = EndReason::kNeverStored;
  uint32_t diverged_sequences = 0;  // kDiverged: stored ends beyond this point, counted up to 1,000
  std::vector<Shortening> shortened_by;
  // Pages of [0, restorable_tokens): in RAM, on SSD only, and on their way from another host.
  uint64_t ram_bytes = 0;
  uint64_t ssd_bytes = 0;
  uint64_t remote_bytes = 0;
  uint64_t load_us = 0;  // estimate, from asking for the pages to the last byte at the worker
};

// One page of a lease. A block whose page of a sliding group is not in the lease has rung kNoLimit
// and page_tokens 0. A state group has one entry: the snapshot at the end of the lease, whose rung,
// page_tokens and tokens are its offset in the block.
struct LeasedPage {
  uint32_t group = 0;
  uint32_t rung = 0;
  uint32_t first_token = 0;     // first token of the block, counted in the sequence
  uint32_t page_tokens = 0;     // slots of the stored page
  uint32_t tokens = 0;          // slots that the lease covers, <= page_tokens
  bool in_ram = false;          // readable now
  uint64_t offset = kNoOffset;  // in the arena's data; kNoOffset if unknown or not shared
  bool absent() const { return rung == kNoLimit; }
};

// The places of many pages that are all readable now, each group in one rung.
struct PageTable {
  std::vector<uint32_t> groups;   // ascending; empty if the table is not used
  std::vector<uint32_t> rungs;    // the rung of each group
  uint32_t last_page_tokens = 0;  // slots of the last block's pages; earlier ones have block_tokens
  std::vector<uint64_t> offsets;  // in the arena's data, ordered by group, then by block
};

enum class BlockState : uint8_t { kPresent = 1, kYours = 2, kPending = 3 };

struct BlockPlan {
  uint32_t first_token = 0;
  uint32_t tokens = 0;
  BlockState state = BlockState::kYours;
  // For each group of the space: the rung to write; kNoLimit if no page is wanted, as for every
  // state group.
  std::vector<uint32_t> rungs;
  // For each group: CheckSeed of that page, 0 if there is none. Empty if not asked for.
  std::vector<uint64_t> seeds{};
};

inline constexpr uint32_t kMaxSnapshots = 64;  // on one chain of blocks

struct ReservePlan {
  ReservationId reservation;
  std::vector<BlockPlan> blocks;
  // The positions at which a snapshot of every state group is wanted, ascending.
  std::vector<uint32_t> snapshot_tokens{};
};

enum class StoreResult : uint8_t { kStored = 1, kDuplicate = 2, kRefused = 3 };

struct BlockResult {
  uint32_t first_token = 0;
  StoreResult result = StoreResult::kStored;
  std::string reason;  // why it was refused
};

// The tier that the committed blocks have reached at least when the answer is sent.
enum class Durability : uint8_t {
  kUnspecified = 0,
  kRam = 1,  // readable; survives kill -9 in a shared arena
  kSsd = 2,  // their segment is ingested and synced
};

struct CommitAnswer {
  uint32_t stored_tokens = 0;
  uint32_t duplicate_tokens = 0;
  std::vector<BlockResult> blocks;
  // A lease on the published pages, if the writer asked for one to read them in the arena.
  LeaseId lease;
  std::vector<LeasedPage> pages;             // group by group in position order
  uint32_t first_block = 0;                  // the block that `pages` begin with
  Durability durability = Durability::kRam;  // of the sequence up to the committed token
};

// A model that a worker serves without sharing its caches.
struct NotShared {
  std::string model;
  std::string reason;
};

// A session, described for people.
struct SessionInfo {
  SessionName session;
  std::string worker;
  std::string library{};    // of the worker and its engine, with versions; may be empty
  uint32_t slot = kNoSlot;  // kNoSlot if it does not map the arena
  uint64_t pid = 0;         // 0 = unknown
  bool attached = false;    // false: its stream ended, but its process may still be reading
  double age_s = 0;
  uint64_t leases = 0, leased_bytes = 0, reservations = 0;
  uint64_t staging_bytes = 0;
  uint64_t device_pinned_bytes = 0;     // slabs of the arena that it says it has pinned for devices
  std::vector<NotShared> not_shared{};  // ordered by model
};
struct LeaseInfo {
  LeaseId lease;
  SessionId session;     // the id that the index knows
  SessionName holder{};  // the name that people see
  SpaceId space{};
  uint32_t tokens = 0;
  uint64_t pages = 0, bytes = 0;
  double age_s = 0;
};

struct PinInfo {
  PinId pin;
  SpaceId space{};
  std::string worker;  // the worker that made it
  uint32_t tokens = 0;
  uint64_t pages = 0, bytes = 0;
  double age_s = 0;
  double left_s = 0;  // 0 if it never ends
};

// The limits of one space. 0 means no limit.
struct SpaceLimits {
  uint64_t ram_floor_bytes = 0;    // extents; below it nothing of the space is evicted for others
  uint64_t ram_ceiling_bytes = 0;  // extents; above it the space's own coldest pages are evicted
  uint64_t ssd_ceiling_bytes = 0;  // pages; above it the space's coldest copies are forgotten
  uint64_t ttl_ms = 0;             // blocks unused for so long are forgotten
  uint64_t ssd_floor_bytes = 0;    // pages; below it copies are rewritten instead of aging out
  bool operator==(const SpaceLimits&) const = default;
};

// Tokens by where their pages were when they were looked up.
struct TierTokens {
  uint64_t ram = 0, ssd = 0, remote = 0;
  bool operator==(const TierTokens&) const = default;
};
// What requests asked for and got of one space since it was opened, or since the start.
struct SpaceTokens {
  uint64_t requested = 0, matched = 0;
  TierTokens restorable, used;
  bool operator==(const SpaceTokens&) const = default;
};

struct SpaceSummary {
  SpaceHandle handle;
  SpaceId id{};
  SpaceIdentity identity;
  uint64_t blocks = 0;         // blocks with pages in some tier
  uint64_t holes = 0;          // blocks without pages, kept for their descendants
  uint64_t ends = 0;           // declared sequence ends
  uint64_t stored_tokens = 0;  // sum of block tokens, each block once
  uint64_t ram_payload_bytes = 0, ram_extent_bytes = 0;
  uint64_t ssd_payload_bytes = 0, ssd_page_bytes = 0;
  uint64_t dirty_bytes = 0;  // pages that are in RAM only
  SpaceLimits limits;
  SpaceTokens tokens{};
};

// The budgets in force, and the memory still to be given back after a budget shrank.
struct BudgetState {
  uint64_t ram_budget_bytes = 0, ram_used_bytes = 0;
  uint64_t ram_over_bytes = 0;  // in slabs that are given back once they run empty as leases end
  uint64_t awaited_bytes = 0;   // of these, of slabs that are empty but pinned for devices
  uint64_t ssd_budget_bytes = 0, ssd_file_bytes = 0;
};

// An answer of Acquire that the cache remembers. Holds no token ids.
struct PastAnswer {
  std::string request_id;  // the worker's, or a generated one
  SpaceId space{};
  std::string worker;
  double age_s = 0;
  uint32_t requested_tokens = 0;
  MatchAnswer match;
  // Where the time went, in microseconds.
  uint64_t wait_us = 0;    // waiting for tokens that another session announced
  uint64_t match_us = 0;   // finding the pages and leasing them
  uint64_t room_us = 0;    // making room for pages on SSD and starting their reads
  uint64_t remote_us = 0;  // asking the store that hosts share, before that
  // What the worker reported when it released the lease.
  uint32_t used_tokens = 0;
  uint64_t load_us = 0, first_token_us = 0;
};
struct WhyQuery {
  std::string request_id;  // empty for any
  uint32_t last = 20;      // the most answers to return
  double below = 0;        // only if less than this share of the request was restorable; 0 for all
};
struct PastAnswers {
  std::vector<PastAnswer> answers;  // newest first
  uint64_t remembered = 0;
};

// Tokens that the same remembered answers read, in whole blocks, and that go on from `parent`.
struct HotPrefix {
  uint32_t parent = 0;  // its place in HotPrefixes::prefixes, counted from 1; 0 = none
  SpaceId space{};
  uint32_t from_token = 0, to_token = 0;
  uint64_t requests = 0;                  // answers that read all of it
  double age_s = 0;                       // of the newest of them
  uint64_t ram_bytes = 0, ssd_bytes = 0;  // of its blocks' pages now; a page may be in both
  BlockHash block_hash{};                 // of its last block
};
struct HotPrefixes {
  std::vector<HotPrefix> prefixes;  // parents first
  uint64_t requests = 0;            // answers that were looked at
  uint64_t gone = 0;                // further ones, whose last block is gone
};

// Power-of-two buckets of microseconds: bucket i counts values in [2^i, 2^(i+1)).
struct LatencyHistogram {
  std::array<uint64_t, 32> buckets{};
  uint64_t count = 0;
  uint64_t sum_us = 0;
};

// The same of milliseconds: bucket i counts values in [2^i, 2^(i+1)), bucket 0 also 0, and the last
// one all above.
struct AgeHistogram {
  std::array<uint64_t, 32> buckets{};
  uint64_t count = 0;
  uint64_t sum_ms = 0;
  void Add(uint64_t ms) {
    ++buckets[std::min<size_t>(31, static_cast<size_t>(std::bit_width(ms | 1)) - 1)];
    ++count;
    sum_ms += ms;
  }
};
// Ages of full blocks. What an earlier daemon stored or used is left out: its times are not known.
struct BlockAges {
  AgeHistogram reuse_gap;             // when a request reads a block: since its last use
  AgeHistogram age_at_hit;            // at the same time: since it was stored
  AgeHistogram idle_at_eviction;      // when the RAM gives a block up: since its last use
  AgeHistogram lifetime_at_eviction;  // at the same time: since it was stored
};

struct NamedCount {
  std::string name;
  uint64_t value = 0;
};
struct NamedLatency {
  std::string name;
  LatencyHistogram histogram;
};

// The store that hosts share.
struct RemoteServer {
  std::string address;
  bool open = false;  // it is given up until next_try_s has passed
  std::string why;    // the last failure
  double failed_s = 0, next_try_s = 0;
  uint64_t in_flight_bytes = 0;
};
struct RemoteStats {
  bool on = false;  // the rest is said if it is
  bool known = false;
  bool cluster = false;
  bool tls = false;
  bool sealed = false;
  std::vector<RemoteServer> servers;
  std::vector<std::string> warnings;
};

struct Stats {
  uint64_t epoch = 0;
  double uptime_s = 0;
  std::string version;
  // Gauges.
  uint64_t ram_budget_bytes = 0;
  std::vector<NamedCount> ram_parts;  // what memory is used for; the sum is <= ram_budget_bytes
  uint64_t ssd_budget_bytes = 0;      // 0 = no SSD tier
  uint64_t ssd_file_bytes = 0;        // as the file system counts them
  uint64_t dirty_bytes = 0;
  uint64_t sessions = 0, leases = 0, leased_bytes = 0, reservations = 0;
  uint64_t pins = 0, pinned_bytes = 0;
  uint64_t snapshot_bytes = 0, snapshot_share_bytes = 0;  // state snapshots in RAM; their limit
  RemoteStats remote;
  // Counters since start, named "tokens.requested", "tokens.matched", "match.exact",
  // "shortened.evicted", ...
  std::vector<NamedCount> counters;
  double seconds_saved = 0;  // may be negative
  std::vector<NamedLatency> latencies;
  BlockAges ages;
  std::vector<SpaceSummary> spaces;
};

}  // namespace prefixd::block
