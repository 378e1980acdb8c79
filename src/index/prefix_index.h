// The index: a prefix tree of KV blocks for every space, what pages each block has and in which
// tier they are, who holds them, and in which order they are given up.
//
// Thread-safe. One mutex, never held across I/O; calls nothing in other rooms but pure functions of
// block/. Knows extents and SSD sequences as values only: cache/ moves the bytes.
//
// Tree. Only a full block (block_tokens) is a parent. A published block supersedes shorter siblings
// with the same first tokens: they leave the tree at once, their ends move over, their extents are
// freed when the last lease ends. A block whose tokens are the start of a longer sibling with pages
// is not stored (kDuplicate), only its end is kept. Siblings that diverge inside a block each hold
// the common tokens. A block without pages stays as a hole while a descendant has pages; without
// descendants it becomes a ghost (hash only, bounded).
//
// Matching compares tokens and content keys, never only hashes. What a restart finds is put
// together by serials: each block has one, drawn when it enters the tree, and its children's
// records name it by that. A hash says nothing of where a block belongs.
//
// Page states, changed only under the mutex:
//   kRam (dirty) -> kSpilling (readable, leasable) -> kRamAndSsd (clean) -> kSsd -> kPromoting ->
//   kRamAndSsd; or gone. A page that is written again from RAM, because its segment leaves, is
//   kSpilling with an ssd_sequence meanwhile. A page adopted from an earlier daemon's arena is
//   kUnverified until it went through kPromoting too, where it is checked in place.
// An extent comes back through TakeFreed() once its page is in SSD or gone and nobody holds it.
//
// Marks. Whoever gives a page an extent may give its marks in the arena file too. They are written
// here only, under the mutex, until the extent comes out of TakeFreed(): a holder's bit before the
// call that takes hold returns, zero when the last holder goes (bits of others that went before
// stay until then), last_use by the calls that take hold or publish, ends whenever they change.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "block/answer.h"
#include "block/arena_file.h"
#include "block/extent.h"
#include "block/page_check.h"
#include "block/tokens.h"

namespace prefixd::index {

inline constexpr uint32_t kMaxSequenceTokens = 1u << 21;
struct Node;  // a block; stays valid while leased, reserved or being spilled

// Names one page for as long as the index lives: a reference to a block that is gone finds nothing.
struct PageRef {
  Node* node = nullptr;
  uint64_t node_id = 0;
  uint16_t group = 0;
  uint16_t rung = 0;
  bool operator==(const PageRef&) const = default;
};

enum class PageState : uint8_t {
  kGone = 0,
  kRam,
  kSpilling,
  kRamAndSsd,
  kSsd,
  kPromoting,
  kUnverified,  // in RAM, its check not looked at yet; on SSD too when ssd_sequence != 0
};
inline bool InRam(PageState s) {
  return s == PageState::kRam || s == PageState::kSpilling || s == PageState::kRamAndSsd;
}

struct PageInfo {
  PageRef ref;
  PageState state = PageState::kGone;
  block::PageName name{};
  uint32_t first_token = 0;  // of the block in its sequence
  uint32_t tokens = 0;       // that belong to the lease (<= name.tokens); name.tokens elsewhere
  uint64_t page_bytes = 0;
  uint64_t payload_bytes = 0;
  uint64_t check = 0;
  block::Extent extent{};     // when InRam(state), kUnverified, or kPromoting from kUnverified
  uint64_t ssd_sequence = 0;  // when kRamAndSsd, kSsd, kPromoting; 0 = not on SSD
};

// Names a block for as long as the index lives.
struct BlockRef {
  Node* node = nullptr;
  uint64_t node_id = 0;
};

// Which pages of a group a restorable length needs.
struct GroupRule {
  block::LayerKind kind = block::LayerKind::kFull;
  uint32_t window = 0, sink_tokens = 0;  // kSliding
  bool operator==(const GroupRule&) const = default;
};

// A page of a kState group is a snapshot: its `rung` is the offset in the block, 1 to its tokens,
// and its name that of the block which these tokens would make. Several may stand in one block, and
// they move to a block that supersedes theirs.
struct SpaceShape {
  block::SpaceId id{};
  uint32_t block_tokens = 64;
  std::vector<uint32_t> rungs;     // ladder size of each group
  std::vector<GroupRule> rules{};  // of each group; none: all are kFull
  uint64_t owner_bytes = 0;        // what the caller keeps for it: counted as the index's memory
  GroupRule RuleOf(uint32_t group) const {
    return group < rules.size() ? rules[group] : GroupRule();
  }
  bool AnyFull() const {
    for (uint32_t group = 0; group < rungs.size(); ++group) {
      if (RuleOf(group).kind == block::LayerKind::kFull) return true;
    }
    return false;
  }
  bool AnyState() const {
    for (uint32_t group = 0; group < rungs.size(); ++group) {
      if (IsState(group)) return true;
    }
    return false;
  }
  bool IsState(uint32_t group) const { return RuleOf(group).kind == block::LayerKind::kState; }
  // Whether a block of `tokens` tokens may have such a page.
  bool Has(uint32_t group, uint32_t rung, uint32_t tokens) const {
    if (group >= rungs.size()) return false;
    return IsState(group) ? rung >= 1 && rung <= tokens : rung < rungs[group];
  }
};

// What a writer tells of where later requests may go on.
struct SnapshotWish {
  std::vector<uint32_t> turn_ends{};
  uint32_t max_snapshots = block::kMaxSnapshots;  // of the chain, those that are there counted
};

// Which pages a caller can use. Empty vectors mean every group, every rung.
struct Selection {
  std::vector<uint32_t> groups;  // ascending
  std::vector<uint64_t> rungs;   // bit mask of usable rungs for each group of the space; the lowest
                                 // set bit is preferred
  // Reserve: a block of which nothing is stored is wanted so many usable rungs coarser, as far as
  // there are any.
  uint32_t coarser = 0;
};

struct MatchOptions {
  Selection selection{};
  // Of the session: whose bit is set in the marks of what it holds. kNoSlot: it maps nothing.
  uint32_t slot = block::kNoSlot;
  uint32_t max_tokens = block::kNoLimit;
  bool causal_content = false;  // a cut inside a content range is allowed
  // Acquire and Extend: where every page is in RAM and every group in one rung, Acquired.table says
  // where, and `pages` is empty.
  bool table = false;
};

struct Acquired {
  block::MatchAnswer answer;  // load_us is cache's to fill
  block::LeaseId lease;       // none when restorable_tokens is 0
  // Group by group, each in position order. Of a sliding group those in its window and its sinks;
  // of a state group the snapshot at the end.
  std::vector<PageInfo> pages;
  block::PageTable table{};  // in their place, if the caller asked for it
  uint32_t from_token = 0;   // that the lease begins with
};

// One of several requests that are to have one length.
struct SetItem {
  block::SpaceHandle space;
  block::SequenceView request;
  MatchOptions options{};
};

struct NewPage {
  uint32_t group = 0;
  uint32_t rung = 0;
  block::Extent extent{};
  uint64_t check = 0;
  uint64_t page_bytes = 0;
  uint64_t payload_bytes = 0;
  block::PageMarks* marks = nullptr;  // in the arena file, valid as long as the extent; may be null
};

// A block's hash, and its parent's.
struct BlockName {
  block::BlockHash hash{}, parent{};
  bool operator==(const BlockName&) const = default;
};
// What tells a block from every other that the cache ever had, and its parent from all others.
struct Serials {
  uint64_t own = 0;     // 0: it is never a parent
  uint64_t parent = 0;  // 0: the root
  bool operator==(const Serials&) const = default;
};

struct Reserved {
  block::ReservePlan plan;
  std::vector<block::BlockHash> hashes;  // of plan.blocks
  std::vector<BlockName> names;          // of plan.blocks
};

// A page and its block as an earlier daemon left them in the arena.
struct AdoptedPage {
  BlockName name;
  Serials serials;
  uint32_t first_token = 0;
  std::vector<block::Token> tokens;  // of the block
  std::vector<block::ContentKey> content;
  std::vector<uint32_t> ends;
  int64_t last_use = 0;  // comparable among adopted pages
  NewPage page;
};

// A block, for the record of one of its pages.
struct BlockDescription {
  BlockName name;
  Serials serials;
  uint32_t first_token = 0;
  std::vector<block::Token> tokens;
  std::vector<block::ContentKey> content;
  std::vector<uint32_t> ends;
};

struct Evicted {
  uint64_t bytes = 0;  // of extents that will come out of TakeFreed()
  uint32_t pages = 0;
  uint32_t dropped_pages = 0;  // of these, how many existed nowhere else
};

inline constexpr uint32_t kManyTouches = 3;

// A block on its way to SSD: its record's content and its dirty pages (now kSpilling), parents
// before children.
struct SpillBlock {
  Node* node = nullptr;  // held until FinishSpill or AbortSpill
  block::SpaceId space{};
  block::BlockHash hash{}, parent{};
  Serials serials;
  std::vector<uint64_t> other_serials;  // that children's records may name it by
  uint32_t first_token = 0;
  std::vector<block::Token> tokens;
  std::vector<block::ContentKey> content;
  std::vector<uint32_t>
      ends;              // token counts inside the block (1..block_tokens) at which a sequence ends
  int64_t last_use = 0;  // stamp, comparable within one index
  // What admission to SSD goes by, beside first_token. Both count from when its pages came to RAM.
  uint32_t touches = 0;    // requests that read it since it was stored, up to kManyTouches
  bool was_ghost = false;  // it had been given up shortly before it was stored: a ghost, or a hole
  std::vector<PageInfo> pages;      // to write
  std::vector<PageInfo> ssd_pages;  // on SSD already
  uint64_t record_sequence = 0;     // of the record; the caller fills it in before FinishSpill
  bool wanted = false;              // for the index: an aborted record is asked for again
};
struct SpilledPage {
  PageRef ref;
  uint64_t ssd_sequence = 0;
  uint64_t replaces = 0;  // the copy that it was written from again; 0 = it had none
};

// The segments that leave the SSD next hold the sequences [first, last].
struct RewriteOptions {
  uint64_t first = 0, last = 0;
  int64_t hot_after = 0;    // pages of blocks used after this stamp: at most `hot_bytes`
  uint64_t hot_bytes = 0;   // the most recently used first
  int64_t warm_after = 0;   // then blocks used after this one, or that others with pages elsewhere
  uint64_t warm_bytes = 0;  // continue, as long as all together are at most so many
};

struct RestoredPage {
  uint32_t group = 0;
  uint32_t rung = 0;
  uint32_t tokens = 0;
  uint64_t page_bytes = 0;
  uint64_t payload_bytes = 0;
  uint64_t check = 0;
  uint64_t ssd_sequence = 0;
};
struct RestoredBlock {
  block::BlockHash hash{}, parent{};
  Serials serials;
  std::vector<uint64_t> other_serials;  // that children's records may name it by
  std::vector<block::Token> tokens;
  std::vector<block::ContentKey> content;
  std::vector<uint32_t> ends;
  std::vector<RestoredPage> pages;
  uint64_t record_sequence = 0;
  int64_t last_use = 0;  // stamp; later uses get higher ones. 0: unknown
};

struct IndexCounts {
  uint64_t leases = 0, reservations = 0;
  uint64_t leased_bytes = 0;  // extent and page bytes held, each page once
  uint64_t pins = 0;
  uint64_t pinned_bytes = 0;  // of pages in pinned blocks, each once
  uint64_t kept_bytes = 0;    // of pages leased, pinned or both, each once: what the quotas count
  uint64_t dirty_bytes = 0;   // extents of pages that are not on SSD
  // Extents of pages on SSD too, or not wanted there, that nobody holds or pinned.
  uint64_t clean_bytes = 0;
  uint64_t memory_bytes = 0;  // of the index itself, estimated
  uint64_t spaces = 0;
  uint64_t ends = 0, ram_payload_bytes = 0;  // of all spaces
  uint64_t snapshot_bytes = 0;               // extents of snapshots
  uint64_t evicted_snapshots = 0;            // for others to come, since the start
  uint64_t refused_snapshots = 0;            // since their share had no room
  uint64_t ghosts = 0;
  int64_t stamp = 0;         // of the latest use: SpillBlock::last_use is on this scale
  uint64_t comparisons = 0;  // of a request with a stored block, since the start
  std::chrono::nanoseconds longest_hold{};  // of its mutex, since the start
};

class PrefixIndex {
 public:
  struct Options {
    uint64_t session_lease_bytes = ~uint64_t{0};  // beyond it Acquire answers shorter: kLeaseQuota
    uint64_t total_lease_bytes = ~uint64_t{0};
    uint64_t memory_limit_bytes = ~uint64_t{0};  // beyond it Publish refuses
    uint64_t snapshot_bytes = ~uint64_t{0};      // extents of snapshots: never more
    uint32_t max_ghosts = 65536;
    block::BlockHasher hasher{};
  };
  explicit PrefixIndex(const Options& options);
  ~PrefixIndex();

  // Of Options, from now on: leases that are there stay, and snapshots that they hold.
  void SetLimits(uint64_t session_lease_bytes, uint64_t total_lease_bytes,
                 uint64_t memory_limit_bytes, uint64_t snapshot_bytes);

  // --- spaces ---
  // The same handle for the same id, for as long as it is there; a random one for a new space,
  // which nobody can guess.
  block::SpaceHandle AddSpace(const SpaceShape& shape);
  // Nothing is known of it but its shape: no block, lease or reservation. False while the index is
  // loading: blocks of any space may come.
  bool IsEmpty(block::SpaceHandle space) const;
  // Its handle means nothing from now on and never comes again. False, with nothing done: it is not
  // empty, or has limits.
  bool ForgetSpace(block::SpaceHandle space);
  // When it returns, no block of the space that was stored before is matched: they go in steps, the
  // deepest first. Held pages are freed when their last lease ends. Returns the page bytes that are
  // no longer reachable, in both tiers. Its reservations become void: Publish answers
  // FailedPrecondition.
  uint64_t Clear(block::SpaceHandle space);
  // Where the pages of blocks in the tree stand, and how much of others is held still.
  struct Places {
    std::vector<block::Extent> extents;
    uint64_t detached_bytes = 0;
  };
  Places ListPlaces() const;
  void SetSpaceLimits(block::SpaceHandle space, const block::SpaceLimits& limits);
  // Fills counts and limits of `summary` (handle given) from the tree.
  void Summarize(block::SpaceSummary* summary) const;

  // --- reading ---
  // Changes nothing, pins nothing. `session` tells own reservations from pending ones.
  block::MatchAnswer Match(block::SpaceHandle space, const block::SequenceView& request,
                           const MatchOptions& options, block::SessionId session = {}) const;
  // Match for each, then cut to the longest length that is right for all of them: restorable_tokens
  // is the same in every answer, and what the others cost it stands there last, as kCommonLength.
  std::vector<block::MatchAnswer> MatchSet(std::span<const SetItem> items,
                                           block::SessionId session = {}) const;
  // Of the request's tokens behind what matches, those of the blocks that follow each other and are
  // remembered as given up.
  uint32_t GhostTokens(block::SpaceHandle space, const block::SequenceView& request) const;
  // Match, then a lease on every page of [0, restorable_tokens) and a fresh stamp on the path, leaf
  // to root.
  Acquired Acquire(block::SpaceHandle space, const block::SequenceView& request,
                   const MatchOptions& options, block::SessionId session);
  // Acquire for each, with answers as MatchSet gives them: every item has its lease, or none has.
  // Where the quotas do not hold that much of all, it is the most that they do hold (kLeaseQuota).
  std::vector<Acquired> AcquireSet(std::span<const SetItem> items, block::SessionId session);
  // Extends a lease of `session`: `more` follows the lease's tokens (its sequence as it was
  // acquired and extended, `tokens` of it). The answer counts whole sequences; `pages` and the
  // bytes per tier are those of blocks that the lease did not hold whole before. The lease keeps
  // its id and covers restorable_tokens from then on: less than before where max_tokens or a
  // content range say so, and what lies beyond is given up. Where another block replaces its
  // partial last one, the pages of both are held until the lease ends or shrinks, as its reader may
  // not have switched. Costs what `more` costs, not what the lease holds. NotFound, the caller then
  // acquires the whole: the lease does not cover exactly [0, tokens), has another selection than
  // `options`, is another session's, lost a page, has sliding or state groups (what those need
  // elsewhere it does not hold), or its blocks are no longer in the tree.
  absl::StatusOr<Acquired> Extend(block::LeaseId lease, uint32_t tokens,
                                  const block::SequenceView& more, const MatchOptions& options,
                                  block::SessionId session);
  // Another session takes part in a lease: a lease of its own on the same pages, of the selected
  // groups (none named: all that the lease has). It ends before the first page that is lost or in a
  // rung that is not usable; with sliding or state groups it is all or nothing. NotFound for an
  // unknown lease, InvalidArgument for a group without pages in it.
  absl::StatusOr<Acquired> Join(block::LeaseId lease, const MatchOptions& options,
                                block::SessionId session);
  // A lease on the pages of [0, tokens) of a reservation, as far as they are stored and in RAM, for
  // its writer; only pages in blocks that begin at `from_token` or later. It ends before the first
  // block that is not stored or has a page that is not in RAM; restorable_tokens says where, 0 when
  // nothing is left (no lease then). Sliding pages as far as they are there, no snapshots.
  Acquired LeasePublished(block::ReservationId reservation, uint32_t from_token, uint32_t tokens,
                          uint32_t slot);
  // A lease on pages that a session of an earlier daemon may still be reading; pages that are gone
  // or not in RAM are left out. No quota stops it: they are being read. None when no page is left.
  // Its tokens are 0: it can be released only.
  block::LeaseId AdoptLease(block::SessionId session, uint32_t slot,
                            std::span<const PageRef> pages);
  std::vector<block::LeaseInfo> ListLeases() const;  // age_s is the caller's
  // Gives up what the lease holds beyond `tokens`. NotFound for an unknown lease.
  absl::Status ShrinkLease(block::LeaseId lease, uint32_t tokens);
  absl::Status Release(block::LeaseId lease);

  // --- pins ---
  // Of what the lease covers, up to `tokens`, every page that is there stays, those in RAM in RAM,
  // until Unpin or Clear; blocks that supersede a pinned one are pinned in its place. Charged to
  // the lease's session beside its leases. NotFound for an unknown lease; FailedPrecondition when
  // its blocks left the tree meanwhile: the caller acquires again.
  absl::StatusOr<block::PinId> Pin(block::LeaseId lease, uint32_t tokens);
  absl::Status Unpin(block::PinId pin);  // NotFound also after a Clear
  struct PinInfo {
    block::PinId pin;
    block::SessionId session;
    uint32_t tokens = 0;
    uint64_t pages = 0, bytes = 0;  // that are there now
  };
  std::vector<PinInfo> ListPins() const;  // by id

  // --- promotion: the caller holds a lease on the page, or it is kUnverified ---
  // kSsd or kUnverified -> kPromoting: true for exactly one caller, who then reads (or checks in
  // place) and calls Finish or Fail. From kUnverified the extent stays the page's: pass the same
  // one.
  bool BeginPromotion(const PageRef& page);
  // False, with nothing done: a snapshot for which the share of all snapshots has no room, since
  // others hold it. The caller calls FailPromotion, and the extent stays its own.
  bool FinishPromotion(const PageRef& page, block::Extent extent,
                       block::PageMarks* marks = nullptr);
  // Pages that are kUnverified, coldest last; at most `limit`. Costs what it returns.
  std::vector<PageInfo> Unverified(size_t limit) const;
  // nullopt: the page is gone.
  std::optional<BlockDescription> Describe(const PageRef& page) const;
  // kCorrupt drops the copy that was read (the page is gone unless it was the RAM copy of a page
  // that is on SSD too, which is kSsd then; a later commit heals it); kTryAgain leaves the page as
  // it was. The extent of a bad RAM copy comes out of TakeFreed() when nobody holds the page: an
  // earlier daemon's session may be reading it.
  enum class PromotionFailure { kCorrupt, kTryAgain };
  void FailPromotion(const PageRef& page, PromotionFailure failure);
  // Waits while the page is kPromoting. Returns the page as it is then or at the deadline.
  PageInfo WaitWhilePromoting(const PageRef& page, base::Deadline deadline) const;

  // --- writing ---
  // Plans the blocks of the whole sequence (the last may be partial), holds the deepest present
  // ancestor, announces the missing blocks. A block is kPresent when every selected group has a
  // page in a usable rung holding all its tokens; sliding groups only where an end that `wish`
  // names needs it. InvalidArgument for an empty sequence or one of more than kMaxSequenceTokens;
  // ResourceExhausted when leases and reservations would fill half the memory limit.
  absl::StatusOr<Reserved> Reserve(block::SpaceHandle space, const block::SequenceView& sequence,
                                   const Selection& selection, block::SessionId session,
                                   const SnapshotWish& wish = {});
  // Inserts the pages of block `block_index` of the plan. Parents first: FailedPrecondition when
  // the block before it is in the tree neither published nor present. kDuplicate and kRefused give
  // the extents back through TakeFreed(), and so do snapshots for which their share has no room.
  // Pages for a block that exists are added to it (other group or rung, or healing a hole). No
  // pages at all: for a block of which no full group's page is wanted; what follows it has its
  // parent then.
  // Aborted, with nothing done, when the serials are not those of SerialsFor any more: the caller
  // asks again, and writes what it wrote of them again. None given: nobody wrote any.
  absl::StatusOr<block::StoreResult> Publish(block::ReservationId reservation, uint32_t block_index,
                                             std::span<const NewPage> pages,
                                             const std::optional<Serials>& serials = {});
  // The serials under which block `block_index` of the plan would stand in the tree now: for
  // records that are there before it is. FailedPrecondition as Publish.
  absl::StatusOr<Serials> SerialsFor(block::ReservationId reservation, uint32_t block_index);
  // Declares that a sequence ends after `tokens` tokens of the reservation. FailedPrecondition
  // unless all of them are stored.
  absl::Status AddEnd(block::ReservationId reservation, uint32_t tokens);
  // Commit done or given up: holds and announcements end.
  absl::Status CloseReservation(block::ReservationId reservation);

  // --- giving up ---
  // Sliding pages that no end can need, then blocks (index/eviction_order.h). Of every space that
  // is above its floor, those above their ceiling first: gives up the RAM pages of the coldest
  // block that has no descendant in RAM and whose pages nobody holds. Clean pages move to kSsd;
  // dirty ones are dropped only if `may_drop_dirty`, else such blocks are passed over. nullopt:
  // nothing to give. In order: nor where a dirty block that must stay was used before it.
  enum class GiveUp { kWhatMayGo, kInOrder };
  std::optional<Evicted> EvictOne(bool may_drop_dirty, GiveUp what = GiveUp::kWhatMayGo);
  // The coldest of one space, whatever its floor, until its extents are at most `ram_bytes` or
  // nothing is left to give.
  Evicted EvictAbove(block::SpaceHandle space, uint64_t ram_bytes, bool may_drop_dirty);
  // Blocks of the space that were last used before the stamp, then its coldest that are on SSD only
  // while its pages there are more than `ssd_bytes`, leave the index, leaves first. What is pinned,
  // leased or being written stays. Returns what stood in RAM, and how many pages.
  Evicted ForgetUnused(block::SpaceHandle space, int64_t before_stamp, uint64_t ssd_bytes);
  // The same for every page that nobody holds whose extent lies in [begin, end) of the arena,
  // coldest or not.
  Evicted EvictRange(uint64_t begin, uint64_t end, bool may_drop_dirty);
  // Pages in RAM that nobody holds and that are neither spilling nor promoting, whose extent lies
  // in [begin, end): to be moved. The caller copies, then calls FinishMove, which answers false
  // when somebody took hold meanwhile or the page is no longer there: the new extent stays the
  // caller's. True: the old one comes out of TakeFreed().
  // `others`, unless null, is the number of the other pages in RAM there.
  std::vector<PageInfo> PickMovable(uint64_t begin, uint64_t end, uint64_t* others = nullptr) const;
  bool FinishMove(const PageRef& page, block::Extent from, block::Extent to,
                  block::PageMarks* marks);
  // Gives up a page that PickMovable gave, dirty or not, if nobody holds it and the same copy still
  // stands in the extent; else nothing.
  Evicted EvictPicked(const PageRef& page, block::Extent extent);
  // Extents that no page uses and nobody reads any more: for the arena. Each comes out once.
  std::vector<block::Extent> TakeFreed();
  // Drops blocks that live on SSD only, coldest first, until memory_bytes is at most `target_bytes`
  // or nothing is left to drop. In order: none that was used after the coldest block in RAM.
  void TrimMemory(uint64_t target_bytes, GiveUp what = GiveUp::kWhatMayGo);

  // --- SSD ---
  // Coldest dirty blocks and their dirty ancestors, at most `max_bytes` of pages (but one block
  // when any is dirty), parents before children, and blocks whose ends changed since they were
  // written. Their pages become kSpilling.
  std::vector<SpillBlock> PickSpill(uint64_t max_bytes);
  // Of these blocks and their ancestors instead: what is dirty, and what has no record on SSD.
  std::vector<SpillBlock> PickSpillOf(std::span<const BlockRef> blocks, uint64_t max_bytes);
  // Blocks of the reservation's first `tokens` tokens. FailedPrecondition unless they are stored.
  absl::StatusOr<std::vector<BlockRef>> StoredBlocks(block::ReservationId reservation,
                                                     uint32_t tokens);
  // Whether a restart after a power cut finds these blocks. kGone: one was given up.
  enum class OnDisk { kAll, kNotYet, kGone };
  OnDisk AreOnSsd(std::span<const BlockRef> blocks) const;
  void FinishSpill(std::span<const SpillBlock> blocks, std::span<const SpilledPage> pages);
  void AbortSpill(std::span<const SpillBlock> blocks);  // pages are as they were before
  // Picked, and not written: the blocks are given up as clean ones are, unless somebody takes hold
  // of them meanwhile, or AdmitAll is called.
  void RefuseSpill(std::span<const SpillBlock> blocks);
  void AdmitAll();
  // What is worth writing again before the segments of a range leave, parents before children. In
  // SpillBlock::pages: those in RAM (kSpilling, with their extents) and those to be read from
  // ssd_sequence (kSsd). A block without any has its record there, and pages or descendants that
  // stay on SSD. FinishSpill and AbortSpill as after PickSpill; then DropSsdRange.
  std::vector<SpillBlock> PickRewrite(const RewriteOptions& options);
  // The SSD copies of sequences in [first, last] are no more. Returns the bytes of extents that
  // became dirty by it.
  uint64_t DropSsdRange(uint64_t first, uint64_t last);
  uint64_t DropSsdPages(std::vector<uint64_t> sequences);  // the same of these alone, in one walk
  // --- start ---
  // From now to PruneHoles blocks come back, in any order and beside all other calls: what a match
  // lacks may be on its way (kIndexLoading), and blocks without pages stay for children to come.
  void BeginLoading();
  // Uses from now on get higher stamps than this.
  void StampFrom(int64_t stamp);
  // A block read back from its record. NotFound when its parent is not in the tree; DataLoss when
  // hash(parent, tokens) is not `hash`, the shape does not fit or another block has its serial; a
  // block already there gets the pages and ends it lacks.
  absl::Status Restore(block::SpaceHandle space, const RestoredBlock& block);
  // A page that an earlier daemon left in RAM, kUnverified now; parents first, coldest first among
  // siblings. Merges with what Restore brought: a page that is on SSD under the same check becomes
  // kUnverified with its ssd_sequence. Errors as of Restore, and AlreadyExists when the tree does
  // not need the page (a longer sibling has it, or it is in RAM already), ResourceExhausted for a
  // snapshot beyond their share: the extent stays the caller's.
  absl::StatusOr<PageRef> Adopt(block::SpaceHandle space, const AdoptedPage& page);
  // After the last Restore, Adopt and AdoptLease: forgets blocks whose record came back without
  // pages and that nothing continues; until then they stay for their children, which come later.
  // Ends the holds of adopted pages that no AdoptLease took over, and orders adopted blocks by last
  // use.
  void PruneHoles();

  IndexCounts Counts() const;
  // Checks every invariant between tree, orders, holders and counters; for tests. Internal says
  // which is broken.
  absl::Status Validate() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace prefixd::index
