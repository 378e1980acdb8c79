// The index: a prefix tree of KV blocks for every space, what pages each block has and in which
// tier they are, who holds them, and in which order they are given up.
//
// Thread-safe. One mutex, never held across I/O. Of other rooms the index calls only pure functions
// of block/. It knows extents and SSD sequences as values only: cache/ moves the bytes.
//
// Tree. Only a full block (block_tokens) is a parent. A published block supersedes shorter siblings
// with the same first tokens: they leave the tree at once, their ends move over, their extents are
// freed when the last lease ends. A block whose tokens are the start of a longer sibling with pages
// is not stored (kDuplicate); only its end is kept. Siblings that diverge inside a block each hold
// the common tokens. A block without pages stays as a hole while a descendant has pages; without
// descendants it becomes a ghost (hash only, bounded).
//
// Matching compares tokens and content keys, never only hashes. A restart rebuilds the tree by
// serials: a full block draws one when it enters the tree, and its children's records name it by
// that. A hash does not tell where a block belongs.
//
// Page states, changed only under the mutex:
//   kRam (dirty) -> kSpilling (readable, leasable) -> kRamAndSsd (clean) -> kSsd -> kPromoting ->
//   kRamAndSsd; or gone. A page that comes from another host begins as kPromoting, without a copy
//   on SSD, and becomes kRam or gone. A page that is written again from RAM because its segment
//   leaves is kSpilling with an ssd_sequence meanwhile. A page adopted from an earlier daemon's
//   arena is kUnverified until it has gone through kPromoting, where it is checked in place.
// An extent comes back through TakeFreed() once its page is on SSD only or gone and nobody holds
// it.
//
// Marks. Whoever gives a page an extent may give the page's marks in the arena file too. Only the
// index writes them, under the mutex, until the extent comes out of TakeFreed(). It sets a holder's
// bit before the call that takes hold returns, and clears all bits when the last holder goes (the
// bits of holders that went earlier stay until then). The calls that take hold or publish write
// last_use, unless it is less than a millisecond old; every change of a block's ends writes `ends`.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

#include "base/clock.h"
#include "base/mutex.h"
#include "block/answer.h"
#include "block/arena_file.h"
#include "block/events.h"
#include "block/extent.h"
#include "block/limits.h"
#include "block/page_check.h"
#include "block/tokens.h"
#include "index/event_reads.h"
#include "index/index_counts.h"
#include "index/path_block.h"
#include "index/restored.h"

namespace prefixd::index {

struct Node;  // a block; stays valid while leased, pinned, reserved, spilled or promoted

// Names one page for as long as the index lives. A reference to a block that is gone finds nothing.
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
  kUnverified,  // in RAM, not checked yet; on SSD too when ssd_sequence != 0
};
inline bool InRam(PageState s) {
  return s == PageState::kRam || s == PageState::kSpilling || s == PageState::kRamAndSsd;
}

struct PageInfo {
  PageRef ref;
  PageState state = PageState::kGone;
  block::PageName name{};
  uint32_t first_token = 0;  // of the block, in its sequence
  uint32_t tokens = 0;       // covered by the lease (<= name.tokens); name.tokens without a lease
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
};

// A page of a kState group is a snapshot. Its `rung` is its offset in the block, 1 to the block's
// tokens; its name is that of the block which the tokens up to the offset would make. A block may
// have several. They move to a block that supersedes theirs.
struct SpaceShape {
  block::SpaceId id{};
  uint32_t block_tokens = 64;
  std::vector<uint32_t> rungs;     // ladder size of each group
  std::vector<GroupRule> rules{};  // of each group; empty: all are kFull
  uint64_t owner_bytes = 0;        // the caller's memory for it, counted as the index's
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
  // Returns whether a block of `tokens` tokens may have a page of this group and rung.
  bool Has(uint32_t group, uint32_t rung, uint32_t tokens) const {
    if (group >= rungs.size()) return false;
    return IsState(group) ? rung >= 1 && rung <= tokens : rung < rungs[group];
  }
};

// Where a writer expects later requests to go on.
struct SnapshotWish {
  std::vector<uint32_t> turn_ends{};  // token counts
  // Lattice snapshots are planned only while the chain, existing ones included, has fewer.
  uint32_t max_snapshots = block::kMaxSnapshots;
};

// Which pages a caller can use. Empty vectors mean every group, every rung.
struct Selection {
  std::vector<uint32_t> groups;  // ascending
  std::vector<uint64_t> rungs;   // bit mask of usable rungs for each group of the space; the lowest
                                 // set bit is preferred
  // For Reserve: a block of which nothing is stored is planned this many usable rungs coarser than
  // the preferred one, or in the coarsest usable rung if there are fewer.
  uint32_t coarser = 0;
};

struct MatchOptions {
  Selection selection{};
  // The session's slot, whose bit is set in the marks of the pages it holds. kNoSlot if the session
  // does not map the arena.
  uint32_t slot = block::kNoSlot;
  uint32_t max_tokens = block::kNoLimit;
  bool causal_content = false;  // a cut inside a content range is allowed
  // For Acquire: a request reads the pages, so the blocks count as read again.
  bool reads = true;
  // For Acquire: if every page is in RAM and each group has one rung, the answer fills
  // Acquired.table and leaves `pages` empty.
  bool table = false;
};

struct Acquired {
  block::MatchAnswer answer;  // load_us is cache's to fill
  block::LeaseId lease;       // none when restorable_tokens is 0
  // Group by group, each in position order. A sliding group has the pages of its window and its
  // sinks; a state group has the snapshot at the end.
  std::vector<PageInfo> pages;
  block::PageTable table{};  // replaces `pages` (MatchOptions::table)
  uint32_t from_token = 0;   // first token of the lease
  BlockRef last_full{};      // the last full block of which the lease has every token; none: null
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

// What the record of a page says of its block.
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
  uint32_t dropped_pages = 0;  // of `pages`: those that existed nowhere else
};

inline constexpr uint32_t kManyTouches = 3;

// A block on its way to SSD: its record's content and its dirty pages (now kSpilling). Lists of
// them have parents before children.
struct SpillBlock {
  Node* node = nullptr;  // held until FinishSpill or AbortSpill
  block::SpaceId space{};
  block::BlockHash hash{}, parent{};
  Serials serials;
  std::vector<uint64_t> other_serials;  // serials by which children's records may name it too
  uint32_t first_token = 0;
  std::vector<block::Token> tokens;
  std::vector<block::ContentKey> content;
  std::vector<uint32_t>
      ends;              // token counts inside the block (1..block_tokens) at which a sequence ends
  int64_t last_use = 0;  // stamp, comparable within one index
  // Admission to SSD depends on these three and on first_token. The first two describe the block
  // since its pages came to RAM.
  uint32_t touches = 0;    // requests that read it since it was stored, up to kManyTouches
  bool was_ghost = false;  // it was a ghost or a hole when it was stored: given up shortly before
  bool pinned = false;
  std::vector<PageInfo> pages;      // to write
  std::vector<PageInfo> ssd_pages;  // on SSD already
  uint64_t record_sequence = 0;     // of the record; the caller sets it before FinishSpill
  bool wanted = false;              // the index's own: AbortSpill asks for the record again
};
struct SpilledPage {
  PageRef ref;
  uint64_t ssd_sequence = 0;
  uint64_t replaces = 0;  // ssd_sequence of the copy that this one replaces; 0 if none
};

// Which pages to write again before segments leave the SSD. Blocks come in three steps, the most
// recently used first in each: those that keep their space at its SSD floor, whatever their size;
// hot ones; warm ones.
struct RewriteOptions {
  uint64_t first = 0, last = 0;  // the segments that leave hold the sequences [first, last]
  int64_t hot_after = 0;         // hot: blocks used after this stamp
  uint64_t hot_bytes = 0;        // most page bytes of the first two steps
  int64_t warm_after = 0;        // warm: used after this stamp, or a child keeps pages
  uint64_t warm_bytes = 0;       // most page bytes of all three steps
};

class PrefixIndex {
 public:
  struct Limits {
    uint64_t session_lease_bytes = ~uint64_t{0};  // above it Acquire answers shorter: kLeaseQuota
    uint64_t total_lease_bytes = ~uint64_t{0};    // the same for all sessions: of kept_bytes
    uint64_t memory_limit_bytes = ~uint64_t{0};   // at this size Publish refuses new blocks
    uint64_t snapshot_bytes = ~uint64_t{0};       // share of all snapshots' extents, never exceeded
    uint64_t most_spared_bytes = 0;  // extents of blocks that were read again: see EvictOne
  };
  struct Options {
    Limits limits{};
    uint32_t max_ghosts = 65536;
    uint32_t max_events = 65536;  // that are kept, the last ones; about 150 bytes each
    block::BlockHasher hasher{};
    const base::Clock* clock = &base::SystemClock::Get();  // of CountedAges
  };
  explicit PrefixIndex(const Options& options);
  ~PrefixIndex();

  // Replaces those of Options. Existing leases stay, and so do the snapshots they hold.
  void SetLimits(const Limits& limits);

  // --- spaces ---
  // Returns the space's handle: the same one for the same id while the space exists, a random one
  // that nobody can guess for a new space.
  block::SpaceHandle AddSpace(const SpaceShape& shape);
  // Returns whether the space has no block, lease or reservation. False for an unknown space, and
  // while the index is loading: blocks of any space may come.
  bool IsEmpty(block::SpaceHandle space) const;
  // Forgets the space; its handle is invalid from then on and never comes again. Returns false,
  // with nothing done, if the space is unknown, not empty or has limits.
  bool ForgetSpace(block::SpaceHandle space);
  // Removes the space's blocks in steps, the deepest first. When it returns, no block that was
  // stored before the call is matched. Held pages are freed when their last lease ends. Returns the
  // page bytes that became unreachable, in both tiers. The space's reservations become void:
  // Publish answers FailedPrecondition.
  uint64_t Clear(block::SpaceHandle space);
  struct Places {
    std::vector<block::Extent> extents;  // of pages of blocks in the tree
    uint64_t detached_bytes = 0;         // pages with an extent of blocks that left the tree
  };
  Places ListPlaces() const;
  void SetSpaceLimits(block::SpaceHandle space, const block::SpaceLimits& limits);
  // Fills the counts and limits of `summary` from the tree. The caller sets summary->handle.
  void Summarize(block::SpaceSummary* summary) const;

  // --- reading ---
  // Changes nothing, holds nothing. Reservations of `session` do not count as pending.
  block::MatchAnswer Match(block::SpaceHandle space, const block::SequenceView& request,
                           const MatchOptions& options, block::SessionId session = {}) const;
  // Matches each item, then cuts all answers to the longest length restorable for every item:
  // restorable_tokens is the same in every answer. What the other items cost an item is the last
  // Shortening of its answer, kCommonLength.
  std::vector<block::MatchAnswer> MatchSet(std::span<const SetItem> items,
                                           block::SessionId session = {}) const;
  // Returns how many of the request's tokens behind the match lie in blocks that are remembered as
  // given up, up to the first other block.
  uint32_t GhostTokens(block::SpaceHandle space, const block::SequenceView& request) const;
  // Matches, takes a lease on every page of [0, restorable_tokens) and stamps the path, leaf to
  // root.
  Acquired Acquire(block::SpaceHandle space, const block::SequenceView& request,
                   const MatchOptions& options, block::SessionId session);
  // Acquires each item at the length that MatchSet answers; either every item gets a lease or none.
  // If the quotas do not allow that length for all items, it is the longest that they allow
  // (kLeaseQuota).
  std::vector<Acquired> AcquireSet(std::span<const SetItem> items, block::SessionId session);
  // Returns the pages that the lease holds before `tokens`, of these groups (ascending; none named:
  // all that the lease has), as they are now: group by group, each in position order, cut to
  // `tokens`. A page that was lost is kGone. NotFound for an unknown lease, InvalidArgument for a
  // group that the lease does not have.
  absl::StatusOr<std::vector<PageInfo>> LeasedPages(block::LeaseId lease,
                                                    const std::vector<uint32_t>& groups,
                                                    uint32_t tokens) const;
  // Gives a reservation's writer a lease on the pages of its first `tokens` tokens, only in blocks
  // that begin at `from_token` or later. The lease ends before the first block that is not stored
  // or lacks a full group's page in RAM; restorable_tokens says where, 0 if nothing is left (then
  // there is no lease). It holds the sliding pages that are in RAM and no snapshots.
  Acquired LeasePublished(block::ReservationId reservation, uint32_t from_token, uint32_t tokens,
                          uint32_t slot);
  // Gives a session of an earlier daemon a lease on pages that it may still be reading. Leaves out
  // pages that are gone or not in RAM; returns no lease if none is left. No quota applies, because
  // the pages are being read. The lease covers 0 tokens: it can only be released.
  block::LeaseId AdoptLease(block::SessionId session, uint32_t slot,
                            std::span<const PageRef> pages);
  std::vector<block::LeaseInfo> ListLeases() const;  // the caller fills in age_s
  // Returns the block and what is above it, the deepest first, without those that end behind
  // `tokens`, up to and with the first one that `known` says, else the first block of the sequence.
  // Empty if the block is gone. `known` must not call the index.
  std::vector<PathBlock> PathUp(const BlockRef& block, uint32_t tokens,
                                absl::FunctionRef<bool(uint64_t node_id)> known) const;
  // Gives up the lease's pages in blocks that begin at `tokens` or later. NotFound for an unknown
  // lease.
  absl::Status ShrinkLease(block::LeaseId lease, uint32_t tokens);
  absl::Status Release(block::LeaseId lease);

  // --- pins ---
  // Pins the blocks of the lease's first `tokens` tokens: until Unpin or Clear all their pages
  // stay, and those in RAM stay in RAM. A block that supersedes a pinned one is pinned in its
  // place. The lease's session is charged for the pin beside its leases. NotFound for an unknown
  // lease; FailedPrecondition if a block left the tree meanwhile: the caller acquires again.
  absl::StatusOr<block::PinId> Pin(block::LeaseId lease, uint32_t tokens);
  absl::Status Unpin(block::PinId pin);  // NotFound also after a Clear
  struct PinInfo {
    block::PinId pin;
    block::SessionId session;
    uint32_t tokens = 0;
    uint64_t pages = 0, bytes = 0;  // present pages of the pinned blocks
  };
  std::vector<PinInfo> ListPins() const;  // by id

  // --- promotion: the caller holds a lease on the page, or it is kUnverified ---
  // Moves a page from kSsd to kPromoting. Returns true to exactly one caller, who then reads the
  // page and calls Finish or Fail.
  bool BeginPromotion(const PageRef& page);
  // The same for a page that is kUnverified and stands in `extent`, where the caller checks it. It
  // may have left that extent, or RAM, since the caller saw it there: false. The page keeps its
  // extent, which the caller passes to FinishPromotion.
  bool BeginCheck(const PageRef& page, block::Extent extent);
  // Returns false, with nothing done, if the page is a snapshot and held snapshots leave no room in
  // the snapshots' share. The caller then calls FailPromotion and keeps the extent.
  bool FinishPromotion(const PageRef& page, block::Extent extent,
                       block::PageMarks* marks = nullptr);
  // Returns at most `limit` pages that are kUnverified, coldest last. Costs what it returns.
  std::vector<PageInfo> Unverified(size_t limit) const;
  // Returns nullopt if the page is gone or its block left the tree.
  std::optional<BlockDescription> Describe(const PageRef& page) const;
  // kCorrupt drops the copy that was read. The page is gone then, until a later commit heals it; if
  // the bad copy was in RAM and the page is on SSD too, it becomes kSsd. kTryAgain leaves the page
  // as it was. The extent of a bad RAM copy comes out of TakeFreed() when nobody holds the page,
  // because an earlier daemon's session may be reading it.
  enum class PromotionFailure { kCorrupt, kTryAgain };
  void FailPromotion(const PageRef& page, PromotionFailure failure);
  // Waits while the page is kPromoting. Returns the page as it is afterwards or at the deadline.
  PageInfo WaitWhilePromoting(const PageRef& page, base::Deadline deadline) const;

  // --- arrival: pages that come from another host ---
  // Puts blocks into the tree whose pages are on their way, as kPromoting: block i covers the
  // tokens [(first_block + i) * block_tokens, ...) of the request. Returns the pages that the
  // caller has to bring: for each it calls FinishArrival or FailPromotion. Pages that are there
  // already, or that others bring, are not among them. Does nothing from the first block on whose
  // parent is not in the tree, that the space cannot have, or for which the index has no memory.
  struct ArrivingPage {
    uint32_t group = 0;
    uint32_t rung = 0;
    uint64_t page_bytes = 0;
    uint64_t payload_bytes = 0;
  };
  struct ArrivingBlock {
    std::vector<ArrivingPage> pages;
    std::vector<uint32_t> ends;  // token counts in the block at which a sequence ended
  };
  std::vector<PageInfo> AddArriving(block::SpaceHandle space, const block::SequenceView& request,
                                    uint32_t first_block, std::span<const ArrivingBlock> blocks);
  // As FinishPromotion; `check` is that of the bytes in the extent. The page is dirty then.
  bool FinishArrival(const PageRef& page, uint64_t check, block::Extent extent,
                     block::PageMarks* marks);

  // Leases every page in RAM of one full block of the request, for whoever copies it elsewhere: no
  // use, and no quota applies. No lease if the block is not in the tree or has no such page.
  Acquired LeaseBlock(block::SpaceHandle space, const block::SequenceView& request,
                      uint32_t block_index, block::SessionId session);

  // --- writing ---
  // Plans the blocks of the whole sequence (the last may be partial), holds the deepest present
  // ancestor and announces the missing blocks. A block is kPresent when every selected full group
  // has a page in a usable rung holding all its tokens, and so does every sliding group whose page
  // an end that `wish` names needs. InvalidArgument for an empty sequence or one of more than
  // block::kMaxTokens; ResourceExhausted when leases and reservations would fill half the memory
  // limit: a reservation counts as ReservedBytes of its tokens there.
  absl::StatusOr<Reserved> Reserve(block::SpaceHandle space, const block::SequenceView& sequence,
                                   const Selection& selection, block::SessionId session,
                                   const SnapshotWish& wish = {});
  static uint64_t ReservedBytes(size_t tokens);
  // Inserts the pages of block `block_index` of the plan. The caller publishes parents first:
  // FailedPrecondition when the block before it is in the tree neither published nor present.
  // kDuplicate and kRefused give the extents back through TakeFreed(), as do snapshots for which
  // their share has no room. Pages for a block that exists are added to it (other group or rung, or
  // healing a hole). `pages` may be empty if the plan wants no full group's page of the block; the
  // block then serves as the parent of what follows.
  // Aborted, with nothing done, when the block cannot have `serials` any more: the caller asks
  // SerialsFor again and rewrites its records of them. No serials: no record was written.
  absl::StatusOr<block::StoreResult> Publish(block::ReservationId reservation, uint32_t block_index,
                                             std::span<const NewPage> pages,
                                             const std::optional<Serials>& serials = {});
  // Returns the serials that block `block_index` of the plan would have in the tree, for records
  // that are written before the block is published. FailedPrecondition as in Publish.
  absl::StatusOr<Serials> SerialsFor(block::ReservationId reservation, uint32_t block_index);
  // Declares that a sequence ends after `tokens` tokens of the reservation. FailedPrecondition
  // unless all of them are stored.
  absl::Status AddEnd(block::ReservationId reservation, uint32_t tokens);
  // Ends the reservation's holds and announcements, when its commit is done or given up.
  absl::Status CloseReservation(block::ReservationId reservation);

  // --- giving up ---
  // Gives up sliding pages that no end can need, or else the RAM pages of one block that has no
  // descendant in RAM and whose pages nobody holds. The coldest goes; blocks that were read again
  // since they were stored are spared while they take at most `most_spared_bytes`
  // (index/eviction_order.h). Spaces at or below their floor are spared; spaces above their ceiling
  // go first. Pages that are on SSD too become kSsd. Others, which are dirty, are dropped only if
  // `may_drop_dirty`; otherwise their blocks are passed over. Pages need not be verified, but those
  // that are adopted stay until PruneHoles. Returns nullopt if there is nothing to give up; also if
  // a dirty block that must stay would go before the victim: kInOrder whichever it is, kUnspared if
  // the victim is a spared one and the dirty block is not.
  enum class GiveUp { kWhatMayGo, kUnspared, kInOrder };
  std::optional<Evicted> EvictOne(bool may_drop_dirty, GiveUp what = GiveUp::kWhatMayGo);
  // Gives up the coldest blocks of one space, whatever its floor, until its extents are at most
  // `ram_bytes` or nothing is left to give up.
  Evicted EvictAbove(block::SpaceHandle space, uint64_t ram_bytes, bool may_drop_dirty);
  // Removes blocks of the space from the index, coldest leaves first: those last used before the
  // stamp, then those on SSD only while the space's pages there are more than `ssd_bytes`. Blocks
  // that are pinned, leased or being written stay. Returns the RAM bytes and the number of all
  // pages that went.
  Evicted ForgetUnused(block::SpaceHandle space, int64_t before_stamp, uint64_t ssd_bytes);
  // Gives up, as EvictOne does, every page that is verified, that nobody holds and whose extent
  // lies in [begin, end) of the arena, cold or not.
  Evicted EvictRange(uint64_t begin, uint64_t end, bool may_drop_dirty);
  // Returns for each slab of the arena how many bytes of spared blocks (see EvictOne) stand in it;
  // slabs beyond the end have none.
  std::vector<uint64_t> SparedBytes(uint64_t slab_bytes) const;
  // Returns the pages in RAM that can be moved: nobody holds them, they are neither spilling nor
  // promoting, and their extent lies in [begin, end). `others`, unless null, gets the number of the
  // other pages in RAM there. The caller copies a page, then calls FinishMove. That returns true if
  // the page has the new extent; the old one comes out of TakeFreed(). It returns false if somebody
  // took hold meanwhile or the page is no longer there; the new extent stays the caller's.
  std::vector<PageInfo> PickMovable(uint64_t begin, uint64_t end, uint64_t* others = nullptr) const;
  bool FinishMove(const PageRef& page, block::Extent from, block::Extent to,
                  block::PageMarks* marks);
  // Gives up a page that PickMovable returned, dirty or not, if nobody holds it and the same copy
  // still stands in the extent. Otherwise does nothing.
  Evicted EvictPicked(const PageRef& page, block::Extent extent);
  // Returns the extents, for the arena, that no page uses and nobody reads any more. Each comes out
  // once.
  std::vector<block::Extent> TakeFreed();
  // Drops blocks without RAM pages, coldest first, until memory_bytes is at most `target_bytes` or
  // nothing is left to drop. kInOrder: drops none that was used after the block in RAM that goes
  // next.
  void TrimMemory(uint64_t target_bytes, GiveUp what = GiveUp::kWhatMayGo);

  // --- SSD ---
  // Picks the coldest dirty blocks, blocks whose ends changed since they were written, and
  // ancestors of both that are dirty or have no record on SSD; parents before children. At most
  // `max_bytes` of pages, but always the first block. The dirty pages become kSpilling.
  std::vector<SpillBlock> PickSpill(uint64_t max_bytes);
  // Picks from these blocks and their ancestors instead, also refused ones without a record on SSD.
  std::vector<SpillBlock> PickSpillOf(std::span<const BlockRef> blocks, uint64_t max_bytes);
  // Returns the blocks of the reservation's first `tokens` tokens. FailedPrecondition unless they
  // are stored.
  absl::StatusOr<std::vector<BlockRef>> StoredBlocks(block::ReservationId reservation,
                                                     uint32_t tokens);
  // Returns whether a restart after a power cut finds these blocks; kGone if one was given up.
  enum class OnDisk { kAll, kNotYet, kGone };
  OnDisk AreOnSsd(std::span<const BlockRef> blocks) const;
  void FinishSpill(std::span<const SpillBlock> blocks, std::span<const SpilledPage> pages);
  void AbortSpill(std::span<const SpillBlock> blocks);  // pages become what they were before
  // Ends a pick whose blocks the SSD does not take: they are given up as clean blocks are, until a
  // request takes hold of them, pages are added to them, or AdmitAll is called.
  void RefuseSpill(std::span<const SpillBlock> blocks);
  void AdmitAll();
  // Picks what is worth writing again before the segments of a range leave, parents before
  // children. SpillBlock::pages has pages in RAM (kSpilling, with their extents) and pages to be
  // read from ssd_sequence (kSsd or kPromoting). A block without any is there for its record, which
  // leaves while pages or descendants stay. The caller calls FinishSpill or AbortSpill as after
  // PickSpill, then DropSsdRange.
  std::vector<SpillBlock> PickRewrite(const RewriteOptions& options);
  // Forgets the SSD copies under sequences in [first, last]. Returns the bytes of extents that
  // became dirty by it.
  uint64_t DropSsdRange(uint64_t first, uint64_t last);
  uint64_t DropSsdPages(std::vector<uint64_t> sequences);  // same for these sequences, in one walk
  // --- start ---
  // From this call to PruneHoles the caller restores blocks, in any order and beside all other
  // calls. Meanwhile what a match lacks may be on its way (kIndexLoading), and blocks without pages
  // stay for children to come.
  void BeginLoading();
  // Makes later uses get stamps of at least this one.
  void StampFrom(int64_t stamp);
  // Inserts a block read back from its record. NotFound when its parent is not in the tree;
  // DataLoss when hash(parent, tokens) is not `hash`, the shape does not fit or another block has
  // its serial. A block already there gets the pages and ends it lacks.
  absl::Status Restore(block::SpaceHandle space, const RestoredBlock& block);
  // Inserts a page that an earlier daemon left in RAM, as kUnverified. The caller adopts parents
  // first, coldest first among siblings. Merges with what Restore brought: a page that is on SSD
  // under the same check becomes kUnverified with its ssd_sequence. On an error the extent stays
  // the caller's: those of Restore; AlreadyExists when the tree does not need the page (a longer
  // sibling has it, or it is in RAM already); ResourceExhausted for a snapshot beyond the
  // snapshots' share.
  absl::StatusOr<PageRef> Adopt(block::SpaceHandle space, const AdoptedPage& page);
  // Ends loading, after the last Restore, Adopt and AdoptLease. Forgets blocks whose record came
  // back without pages and that nothing continues; until then they stay because their children may
  // come later. Ends the holds of adopted pages that no AdoptLease took over, and orders adopted
  // blocks by last use.
  void PruneHoles();

  // --- events: for an EventReader ---
  // Notes every change of what is stored from now on, for good. Returns the last event's sequence.
  uint64_t RecordEvents();
  uint64_t LastEvent() const;  // takes no lock
  bool HasEventsAfter(uint64_t sequence) const;
  // Returns the next events after this one, at most `most`. nullopt if the index no longer has them
  // all, or never had.
  std::optional<EventsRead> ReadEvents(uint64_t after, uint32_t most,
                                       const block::EventQuery& query) const;
  // Returns the ids of the blocks of a space or of all, parents first; also of those not stored.
  std::vector<uint64_t> ListStored(const std::optional<block::SpaceId>& space) const;
  // Returns those of these blocks that are stored, as they are.
  StoredRead ReadStored(std::span<const uint64_t> ids, bool with_tokens) const;

  IndexCounts Counts() const;
  // Returns what Acquire, AcquireSet or Counts saw last. Takes no lock.
  MemoryCounts MemorySeen() const;
  block::BlockAges CountedAges() const;  // since the start
  // Checks every invariant between tree, orders, holders and counters; for tests. Internal names
  // the broken one.
  absl::Status Validate() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace prefixd::index
