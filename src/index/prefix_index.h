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
// Matching compares tokens and content keys, never only hashes.
//
// Page states, changed only under the mutex:
//   kRam (dirty) -> kSpilling (readable, leasable) -> kRamAndSsd (clean) -> kSsd -> kPromoting ->
//   kRamAndSsd; or gone.
// An extent comes back through TakeFreed() once its page is in SSD or gone and nobody holds it.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "block/answer.h"
#include "block/extent.h"
#include "block/page_check.h"
#include "block/tokens.h"

namespace prefixd::index {

struct Node;  // a block; stays valid while leased, reserved or being spilled

// Names one page for as long as the index lives: a reference to a block that is gone finds nothing.
struct PageRef {
  Node* node = nullptr;
  uint64_t node_id = 0;
  uint16_t group = 0;
  uint16_t rung = 0;
  bool operator==(const PageRef&) const = default;
};

enum class PageState : uint8_t { kGone = 0, kRam, kSpilling, kRamAndSsd, kSsd, kPromoting };
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
  block::Extent extent{};     // when InRam(state)
  uint64_t ssd_sequence = 0;  // when kRamAndSsd, kSsd, kPromoting
};

struct SpaceShape {
  block::SpaceId id{};
  uint32_t block_tokens = 64;
  std::vector<uint32_t> rungs;  // ladder size of each group
};

// Which pages a caller can use. Empty vectors mean every group, every rung.
struct Selection {
  std::vector<uint32_t> groups;  // ascending
  std::vector<uint64_t> rungs;   // bit mask of usable rungs for each group of the space; the lowest
                                 // set bit is preferred
};

struct MatchOptions {
  Selection selection{};
  uint32_t max_tokens = block::kNoLimit;
  bool causal_content = false;  // a cut inside a content range is allowed
};

struct Acquired {
  block::MatchAnswer answer;    // load_us is cache's to fill
  block::LeaseId lease;         // none when restorable_tokens is 0
  std::vector<PageInfo> pages;  // group by group, each in position order
};

struct NewPage {
  uint32_t group = 0;
  uint32_t rung = 0;
  block::Extent extent{};
  uint64_t check = 0;
  uint64_t page_bytes = 0;
  uint64_t payload_bytes = 0;
};

struct Reserved {
  block::ReservePlan plan;
  std::vector<block::BlockHash> hashes;  // of plan.blocks
};

struct Evicted {
  uint64_t bytes = 0;  // of extents that will come out of TakeFreed()
  uint32_t pages = 0;
  uint32_t dropped_pages = 0;  // of these, how many existed nowhere else
};

// A block on its way to SSD: its record's content and its dirty pages (now kSpilling), parents
// before children.
struct SpillBlock {
  Node* node = nullptr;  // held until FinishSpill or AbortSpill
  block::SpaceId space{};
  block::BlockHash hash{}, parent{};
  uint64_t parent_path = 0;  // tells parents of one hash apart
  uint32_t first_token = 0;
  std::vector<block::Token> tokens;
  std::vector<block::ContentKey> content;
  std::vector<uint32_t>
      ends;              // token counts inside the block (1..block_tokens) at which a sequence ends
  int64_t last_use = 0;  // stamp, comparable within one index
  std::vector<PageInfo> pages;      // to write
  std::vector<PageInfo> ssd_pages;  // on SSD already
  uint64_t record_sequence = 0;     // of the record; the caller fills it in before FinishSpill
};
struct SpilledPage {
  PageRef ref;
  uint64_t ssd_sequence = 0;
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
  uint64_t parent_path = 0;  // tells parents of one hash apart
  std::vector<block::Token> tokens;
  std::vector<block::ContentKey> content;
  std::vector<uint32_t> ends;
  std::vector<RestoredPage> pages;
  uint64_t record_sequence = 0;
};

struct IndexCounts {
  uint64_t leases = 0, reservations = 0;
  uint64_t leased_bytes = 0;  // extent and page bytes held, each page once
  uint64_t dirty_bytes = 0;   // extents of kRam and kSpilling pages
  uint64_t clean_bytes = 0;   // extents of kRamAndSsd pages that nobody holds
  uint64_t memory_bytes = 0;  // of the index itself, estimated
  uint64_t ghosts = 0;
  uint64_t comparisons = 0;  // of a request with a stored block, since the start
};

class PrefixIndex {
 public:
  struct Options {
    uint64_t session_lease_bytes = ~uint64_t{0};  // beyond it Acquire answers shorter: kLeaseQuota
    uint64_t total_lease_bytes = ~uint64_t{0};
    uint64_t memory_limit_bytes = ~uint64_t{0};  // beyond it Publish refuses
    uint32_t max_ghosts = 65536;
    uint32_t hash_bits = 128;  // tests cut it to 8 to force collisions
  };
  explicit PrefixIndex(const Options& options);
  ~PrefixIndex();

  // --- spaces ---
  block::SpaceHandle AddSpace(const SpaceShape& shape);
  // Blocks of the space become unmatchable at once; held pages are freed when their last lease
  // ends. Returns the page bytes that are no longer reachable, in both tiers. Its reservations
  // become void: Publish answers FailedPrecondition.
  uint64_t Clear(block::SpaceHandle space);
  // Fills the counts of `summary` (handle given) from the tree.
  void Summarize(block::SpaceSummary* summary) const;

  // --- reading ---
  // Changes nothing, pins nothing. `session` tells own reservations from pending ones.
  block::MatchAnswer Match(block::SpaceHandle space, const block::SequenceView& request,
                           const MatchOptions& options, block::SessionId session = {}) const;
  // Match, then a lease on every page of [0, restorable_tokens) and a fresh stamp on the path, leaf
  // to root.
  Acquired Acquire(block::SpaceHandle space, const block::SequenceView& request,
                   const MatchOptions& options, block::SessionId session);
  // Gives up what the lease holds beyond `tokens`. NotFound for an unknown lease.
  absl::Status ShrinkLease(block::LeaseId lease, uint32_t tokens);
  absl::Status Release(block::LeaseId lease);
  // Ends every lease and reservation of the session. Returns how many of both.
  size_t EndSession(block::SessionId session);

  // --- promotion: the caller holds a lease on the page ---
  // kSsd -> kPromoting: true for exactly one caller, who then reads and calls Finish or Fail.
  bool BeginPromotion(const PageRef& page);
  void FinishPromotion(const PageRef& page, block::Extent extent);
  // kCorrupt drops the SSD copy (the page is gone, a later commit heals it); kTryAgain leaves the
  // page on SSD.
  enum class PromotionFailure { kCorrupt, kTryAgain };
  void FailPromotion(const PageRef& page, PromotionFailure failure);
  // Waits while the page is kPromoting. Returns the page as it is then or at the deadline.
  PageInfo WaitWhilePromoting(const PageRef& page, base::Deadline deadline) const;

  // --- writing ---
  // Plans the blocks of the whole sequence (the last may be partial), holds the deepest present
  // ancestor, announces the missing blocks. A block is kPresent when every selected group has a
  // page in a usable rung holding all its tokens. InvalidArgument for an empty sequence;
  // ResourceExhausted when leases and reservations would fill half the memory limit.
  absl::StatusOr<Reserved> Reserve(block::SpaceHandle space, const block::SequenceView& sequence,
                                   const Selection& selection, block::SessionId session);
  // Inserts the pages of block `block_index` of the plan. Parents first: FailedPrecondition when
  // the block before it is in the tree neither published nor present. kDuplicate and kRefused give
  // the extents back through TakeFreed(). Pages for a block that exists are added to it (other
  // group or rung, or healing a hole).
  absl::StatusOr<block::StoreResult> Publish(block::ReservationId reservation, uint32_t block_index,
                                             std::span<const NewPage> pages);
  // Declares that a sequence ends after `tokens` tokens of the reservation. FailedPrecondition
  // unless all of them are stored.
  absl::Status AddEnd(block::ReservationId reservation, uint32_t tokens);
  // Commit done or given up: holds and announcements end.
  absl::Status CloseReservation(block::ReservationId reservation);

  // --- giving up ---
  // Gives up the RAM pages of the coldest block that has no descendant in RAM and whose pages
  // nobody holds. Clean pages move to kSsd; dirty ones are dropped only if `may_drop_dirty`, else
  // such blocks are passed over. nullopt: nothing to give.
  std::optional<Evicted> EvictOne(bool may_drop_dirty);
  // The same for every page that nobody holds whose extent lies in [begin, end) of the arena,
  // coldest or not.
  Evicted EvictRange(uint64_t begin, uint64_t end, bool may_drop_dirty);
  // Extents that no page uses and nobody reads any more: for the arena. Each comes out once.
  std::vector<block::Extent> TakeFreed();
  // Drops blocks that live on SSD only, coldest first, until memory_bytes is at most `target_bytes`
  // or nothing is left to drop.
  void TrimMemory(uint64_t target_bytes);

  // --- SSD ---
  // Coldest dirty blocks and their dirty ancestors, about `max_bytes` of pages (at least one block
  // when any is dirty), parents before children, and blocks whose ends changed since they were
  // written. Their pages become kSpilling.
  std::vector<SpillBlock> PickSpill(uint64_t max_bytes);
  void FinishSpill(std::span<const SpillBlock> blocks, std::span<const SpilledPage> pages);
  void AbortSpill(std::span<const SpillBlock> blocks);  // pages are kRam again
  // The SSD copies of sequences in [first, last] are no more.
  void DropSsdRange(uint64_t first, uint64_t last);
  // A block read back from its record. NotFound when its parent is not in the tree; DataLoss when
  // hash(parent, tokens) is not `hash` or the shape does not fit; a block already there gets the
  // pages and ends it lacks.
  absl::Status Restore(block::SpaceHandle space, const RestoredBlock& block);
  // After the last Restore: forgets blocks whose record came back without pages and that nothing
  // continues. Until then they stay for their children, which come later.
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
