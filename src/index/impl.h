// The index's insides: one struct of guarded state, with its verbs in one file each.
//
// tree.cc      nodes in and out of the tree, ends, superseding, pruning
// account.cc   totals, eviction order and spill order, updated after every change
// walk.cc      the walk along a request; restorable.cc: how far pages reach
// loose.cc     pages given up without their block: sliding ones and snapshots
// match.cc, acquire.cc, set.cc, lease.cc, share.cc, pin.cc, promote.cc, arrive.cc, reserve.cc,
// publish.cc, evict.cc, move.cc, spill.cc, rewrite.cc, restore.cc, adopt.cc: the verbs
// events.cc    what is told of changes, noted by Change
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"

#include "base/combiner.h"
#include "base/mutex.h"
#include "index/ages.h"
#include "index/event_log.h"
#include "index/eviction_order.h"
#include "index/node_pool.h"
#include "index/prefix_index.h"
#include "index/restorable.h"
#include "index/space.h"
#include "index/walk.h"

namespace prefixd::index {

// The bad RAM copy of a page that failed its check in place while it was held. Its extent is free
// when nobody holds the page any more.
struct Condemned {
  const Node* node = nullptr;
  uint16_t group = 0, rung = 0;
  block::Extent extent{};
};
struct AdoptedUse {
  PageRef ref;
  int64_t last_use = 0;
};

struct PrefixIndex::Impl {
  explicit Impl(const Options& options)
      : options(options), limits(options.limits), ghosts(options.max_ghosts), ages(options.clock) {}
  ~Impl();

  // --- tree.cc ---
  block::BlockHash Hash(const block::BlockHash& parent, const block::SequenceView& block) const {
    return options.hasher.Hash(parent, block);
  }
  uint64_t NewSerial() PREFIXD_REQUIRES(mutex);
  int64_t NewStamp() PREFIXD_REQUIRES(mutex) {
    ages.NoteStamp(next_stamp);
    return next_stamp++;
  }
  // Sees to it that stamps from now on are `from` or later.
  void StampFrom(int64_t from) PREFIXD_REQUIRES(mutex);
  // Return what counts the ages of blocks that a request reads, or that RAM gives up, now.
  Ages::Counting CountRead() PREFIXD_REQUIRES(mutex) {
    return ages.CountRead(next_stamp - 1, next_serial);
  }
  Ages::Counting CountGivenUp() PREFIXD_REQUIRES(mutex) {
    return ages.CountGivenUp(next_stamp - 1, next_serial);
  }
  Space* FindSpace(block::SpaceHandle handle) const PREFIXD_REQUIRES(mutex);
  bool IsEmpty(const Space& space) const PREFIXD_REQUIRES(mutex);
  // Inserts a hole with these tokens under `parent`, with `hash`, `serial` (0: a new one) and room
  // for `pages` pages, which the caller adds.
  Node* InsertChild(Node& parent, const block::SequenceView& tokens, const block::BlockHash& hash,
                    uint64_t serial, size_t pages) PREFIXD_REQUIRES(mutex);
  // Takes the node out of the tree and deletes it when nobody needs it. `ghost`: remembers its
  // hash. Requires: no children.
  void Detach(Node& node, bool ghost) PREFIXD_REQUIRES(mutex);
  // Removes from the tree the shorter siblings that hold nothing that `node` does not hold.
  void SupersedePrefixes(Node& node) PREFIXD_REQUIRES(mutex);
  // Moves snapshots and pins of `shorter` to its sibling `node` and removes it from the tree.
  // Returns false, with nothing done, if a snapshot cannot move yet. Requires: `node` covers it.
  bool TakePlace(Node& node, Node& shorter) PREFIXD_REQUIRES(mutex);
  void MoveSnapshots(Node& from, Node& to) PREFIXD_REQUIRES(mutex);
  // Lets a longer sibling take the node's place, if one can; called after a snapshot of `node` was
  // let go. May delete `node`.
  void Merge(Node& node) PREFIXD_REQUIRES(mutex);
  // Adds an end after `count` tokens of `first`, which is the first in token order of the siblings
  // with these tokens.
  void SetEnd(Node& first, uint32_t count) PREFIXD_REQUIRES(mutex);
  // Frees what nobody needs and prunes upwards, after pages, holders or pins went away. May delete
  // `node`. Returns the block where the pruning stopped, or nullptr if it is the root or `node` is
  // not in the tree.
  Node* Settle(Node* node) PREFIXD_REQUIRES(mutex);
  void SettleIfLeft(std::span<const BlockRef> nodes) PREFIXD_REQUIRES(mutex);  // in this order
  void Free(block::Extent extent) PREFIXD_REQUIRES(mutex) {  // TakeFreed returns it
    freed.push_back(extent);
    any_freed.store(true, std::memory_order_relaxed);
  }
  void FreeExtent(Page& page) PREFIXD_REQUIRES(mutex);  // changes nothing else of the page
  void FreePage(Page& page) PREFIXD_REQUIRES(mutex);    // frees the extent too; the page is kGone
  // Returns nullptr when the block or the page is gone for good.
  Page* Resolve(const PageRef& ref) PREFIXD_REQUIRES(mutex);
  void StampPath(Node* leaf) PREFIXD_REQUIRES(mutex);  // stamps `leaf` and its ancestors
  void StampBlock(Node& node, int64_t stamp) PREFIXD_REQUIRES(mutex);

  // Calls `look(Node&)` under the mutex for every block, in or out of the tree, and releases the
  // mutex after every kStepBlocks. May miss blocks that come meanwhile.
  static constexpr uint32_t kStepBlocks = 8192;
  template <typename Look>
  void ForEachInSteps(Look look) const PREFIXD_EXCLUDES(mutex) {
    for (uint32_t from = 0; from != NodePool::kNone;) {
      const base::MutexLock lock(mutex);
      from = nodes.ForSome(from, kStepBlocks, look);
    }
  }
  // Calls `take` under the mutex for each item, in smaller steps: it costs more than a look.
  template <typename Item, typename Take>
  void InSteps(std::span<const Item> items, Take take) const PREFIXD_EXCLUDES(mutex) {
    constexpr size_t kStep = kStepBlocks / 16;
    for (size_t from = 0; from < items.size(); from += kStep) {
      const base::MutexLock lock(mutex);
      for (const Item& item : items.subspan(from, std::min(kStep, items.size() - from))) take(item);
    }
  }
  // Calls `look(Node&)` the same way for those of these blocks that still exist.
  template <typename Ref, typename Look>
  void ForEachInSteps(const std::vector<Ref>& blocks, Look look) const PREFIXD_EXCLUDES(mutex) {
    InSteps(std::span<const Ref>(blocks), [&](const Ref& block) {
      if (nodes.Find(block.node_id) != nullptr) look(*block.node);
    });
  }
  struct FoundBlock : BlockRef {
    uint32_t first_token = 0;
  };
  template <typename IsWanted>
  std::vector<FoundBlock> FindInSteps(IsWanted is_wanted) const PREFIXD_EXCLUDES(mutex) {
    std::vector<FoundBlock> found;
    ForEachInSteps([&](Node& node) {
      if (is_wanted(node)) found.push_back({{&node, node.id()}, node.first_token()});
    });
    return found;
  }
  // Settles the blocks in steps. Passes over a block that goes before its turn.
  void SettleDeepestFirst(std::vector<FoundBlock>* blocks) PREFIXD_EXCLUDES(mutex);

  // --- account.cc ---
  // Every change of a node's pages, ends, holders, stamp or place in the tree happens during the
  // life of a Change; its destructor updates totals and orders.
  class Change {
   public:
    Change(Impl& impl, Node& node) PREFIXD_REQUIRES(impl.mutex);
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    Impl& impl_;
    Node& node_;
    const Totals before_;
    const bool was_in_tree_;
    const block::StoredState state_before_;  // while events are recorded
  };
  void Refresh(Node& node) PREFIXD_REQUIRES(mutex);
  void Reorder(Node& node) PREFIXD_REQUIRES(mutex);
  static bool InNoOrder(const Node& node);
  // Returns where the node belongs in the order of eviction. `pages`: CountPages(node).
  EvictPlace PlaceOf(const Node& node, const PageCounts& pages) const PREFIXD_REQUIRES(mutex);
  // Takes the node out of every order by stamp; the caller calls Reorder afterwards.
  void SetStamp(Node& node, int64_t stamp) PREFIXD_REQUIRES(mutex);
  bool WantsSpill(const Node& node) const;
  uint64_t MemoryBytes() const PREFIXD_REQUIRES(mutex);
  void NoteMemory() PREFIXD_REQUIRES(mutex);  // for MemorySeen

  // --- events.cc ---
  void NoteChange(const Node& node, const block::StoredState& before) PREFIXD_REQUIRES(mutex);
  void NoteCleared(const Space& space) PREFIXD_REQUIRES(mutex);

  // --- match.cc ---
  // `path` is FindRestorable's; if not every group is FULL, Answer finds it.
  block::MatchAnswer Answer(const Asked& asked, const Walk& walk, const Usable& usable,
                            const MatchOptions& options, block::SessionId session,
                            RestorablePath& path) const PREFIXD_REQUIRES(mutex);
  bool NextBlockIsGhost(const Asked& asked, const Walk& walk) const PREFIXD_REQUIRES(mutex);
  // Returns up to which token reservations of other sessions announce the request from `from` on;
  // `from` if they do not.
  uint32_t AnnouncedUpTo(const Asked& asked, const Usable& usable, block::SessionId session,
                         uint32_t from) const PREFIXD_REQUIRES(mutex);

  block::MatchAnswer Match(block::SpaceHandle space, const block::SequenceView& request,
                           const MatchOptions& options, block::SessionId session) const
      PREFIXD_REQUIRES(mutex);

  // --- set.cc ---
  struct Member {      // what is looked up once for an item; only `own` is set if that is 0
    uint32_t own = 0;  // restorable length of the item alone
    Asked asked;
    Walk walk;  // not set if every group is FULL
    Usable usable;
    bool causal_content = false;
  };
  std::vector<Member> MembersOf(std::span<const SetItem> items,
                                std::span<const block::MatchAnswer> own) const
      PREFIXD_REQUIRES(mutex);
  // Returns the longest length of at most `most` that is restorable for every member. Costs what it
  // passes over in the members' content, windows and snapshots.
  static uint32_t CommonLength(std::span<const Member> members, uint32_t most);
  void CutAnswers(std::span<const SetItem> items, uint32_t to, block::ShortenReason reason,
                  block::SessionId session, std::vector<block::MatchAnswer>& own) const
      PREFIXD_REQUIRES(mutex);
  std::vector<block::MatchAnswer> OwnAnswers(std::span<const SetItem> items,
                                             block::SessionId session) const
      PREFIXD_REQUIRES(mutex);
  // Acquires every item at exactly `tokens`. Returns false, with nothing held, if the quotas do not
  // allow it.
  bool HoldSet(std::span<const SetItem> items, uint32_t tokens, block::SessionId session,
               std::vector<Acquired>& set) PREFIXD_REQUIRES(mutex);
  // Returns the longest length below `too_much` that the quotas allow for all items.
  uint32_t MostWithinQuotas(std::span<const SetItem> items, std::span<const Member> members,
                            uint32_t too_much, block::SessionId session) PREFIXD_REQUIRES(mutex);

  // --- acquire.cc ---
  Acquired Acquire(block::SpaceHandle space, const block::SequenceView& request,
                   const MatchOptions& options, block::SessionId session) PREFIXD_REQUIRES(mutex);
  // Returns how many tokens the quotas allow `lease` to cover when it also takes the pages of
  // `path`; at most `tokens`.
  uint32_t CutToQuota(const Lease& lease, const RestorablePath& path, uint32_t tokens) const
      PREFIXD_REQUIRES(mutex);
  // Cuts the answer to the quotas; also the path if a group is not FULL.
  void KeepQuota(const Lease& lease, const Asked& asked, const Walk& walk,
                 const MatchOptions& options, RestorablePath& path,
                 block::MatchAnswer& answer) const PREFIXD_REQUIRES(mutex);
  // Takes a new lease on [lease.from, answer.restorable_tokens) of the path, and none if that is
  // empty or has no page.
  void Grant(Lease lease, const RestorablePath& path, const MatchOptions& options,
             Acquired& acquired) PREFIXD_REQUIRES(mutex);

  // --- lease.cc ---
  // How many pages ahead the marks are prefetched that are going to be looked at.
  static constexpr size_t kMarksAhead = 32;
  // Makes the lease hold the pages of [0, tokens) of the path.
  void Hold(Lease& lease, const RestorablePath& path, uint32_t tokens) PREFIXD_REQUIRES(mutex);
  // The caller of TakePage or DropPage updates totals and orders (AddSums, Reorder). DropPage
  // returns false if this was the last holder and the page is gone, so that its slot may go too.
  static void TakePage(HeldPath& held, uint32_t slot, Node& node, Page& page, int64_t now,
                       LeasedSums& sums);
  bool DropPage(const HeldPage& held, LeasedSums& sums) PREFIXD_REQUIRES(mutex);
  // Notes the bit of a reader's slot and the use in the page's marks.
  static void Mark(PageUse& use, uint64_t slot, int64_t now);
  // Returns whether `now` is late enough to be written over `last_use_us`: not at once, so that
  // hits on many cores share the marks' cache lines. After a kill, uses that were closer to each
  // other may be in the wrong order.
  static bool IsAnotherUse(int64_t last_use_us, int64_t now) {
    return std::abs(now - last_use_us) > 1'000;
  }
  // Counts a request that reads the block, which somebody holds now and whose stamp was `stamp`.
  void ReadBlock(Node& node, int64_t stamp, Ages::Counting& read, LeasedSums& sums)
      PREFIXD_REQUIRES(mutex);
  void Touch(Node& node, LeasedSums& sums) PREFIXD_REQUIRES(mutex);
  void AddSums(const LeasedSums& sums) PREFIXD_REQUIRES(mutex);
  block::LeaseId AddLease(Lease lease) PREFIXD_REQUIRES(mutex);
  void LetGo(Lease& lease) PREFIXD_REQUIRES(mutex);  // of all its pages; it is of no use then
  // Drops the pages of `lease` in blocks that begin at `tokens` or later.
  void GiveUp(Lease& lease, uint32_t tokens) PREFIXD_REQUIRES(mutex);
  void DropPages(std::span<const HeldPage> pages) PREFIXD_REQUIRES(mutex);
  absl::Status EndLease(block::LeaseId id) PREFIXD_REQUIRES(mutex);

  // --- share.cc ---
  // Makes the lease hold the path's pages of [0, lease.tokens) together with other leases, and
  // draws stamps for its blocks. Returns false, with nothing done, if no lease holds just those.
  bool Join(Lease& lease, const RestorablePath& path) PREFIXD_REQUIRES(mutex);
  // Counts a request that reads the path's blocks, which `held` holds.
  void ReadTogether(const HeldPath& held, const RestorablePath& path, size_t blocks)
      PREFIXD_REQUIRES(mutex);
  // Lets later leases join `lease`, which took hold of its pages and stamped their blocks just now.
  void Share(const Lease& lease, const RestorablePath& path) PREFIXD_REQUIRES(mutex);
  // Gives the blocks the stamps that were drawn for them.
  void WriteStamps(HeldPath& held) PREFIXD_REQUIRES(mutex);
  void EndSharing(HeldPath& held) PREFIXD_REQUIRES(mutex);  // its last lease ends

  // --- pin.cc ---
  void EndPin(block::PinId id) PREFIXD_REQUIRES(mutex);
  void EndPinsOf(const Space& space) PREFIXD_REQUIRES(mutex);
  void MovePins(Node& from, Node& to) PREFIXD_REQUIRES(mutex);  // `from` leaves the tree next

  // --- arrive.cc ---
  // Returns the full block of the request at `first_token` under `parent`, made if need be, or
  // nullptr if there is no memory for it.
  Node* BlockFor(Node& parent, const block::SequenceView& tokens, size_t pages)
      PREFIXD_REQUIRES(mutex);
  void Expect(Node& node, const ArrivingBlock& block, std::vector<PageInfo>& expected)
      PREFIXD_REQUIRES(mutex);

  // --- promote.cc ---
  void SetPromoting(Node& node, Page& page) PREFIXD_REQUIRES(mutex);
  // Gives a kPromoting page without an extent the one that it was read into.
  void PutInRam(Node& node, Page& page, block::Extent extent, block::PageMarks* marks)
      PREFIXD_REQUIRES(mutex);
  void DropBadCopy(Node& node, Page& page) PREFIXD_REQUIRES(mutex);

  // --- reserve.cc ---
  // Fills the reservation's blocks and states. Requires: wish.turn_ends ascend, and the last one is
  // the sequence's own end.
  void PlanBlocks(const Walk& walk, block::SessionId session, uint32_t coarser,
                  const SnapshotWish& wish, Reservation& reservation) const PREFIXD_REQUIRES(mutex);
  absl::Status CheckReserve(const Space* space, block::SpaceHandle handle, size_t tokens) const
      PREFIXD_REQUIRES(mutex);
  void MoveHold(Reservation& reservation, Node* to, uint32_t blocks) PREFIXD_REQUIRES(mutex);
  void DropHold(Node& node) PREFIXD_REQUIRES(mutex);
  void DropHolds(Reservation& reservation) PREFIXD_REQUIRES(mutex);
  absl::Status EndReservation(block::ReservationId id) PREFIXD_REQUIRES(mutex);
  // Returns the parent of block `block_index` if the path to it is in the tree, or nullptr.
  Node* ParentOf(Reservation& reservation, uint32_t block_index) PREFIXD_REQUIRES(mutex);

  // --- publish.cc ---
  absl::StatusOr<Reservation*> FindReservation(block::ReservationId id) PREFIXD_REQUIRES(mutex);
  // Returns the parent under which a block of the plan may be published. FailedPrecondition if that
  // is not stored.
  absl::StatusOr<Node*> ParentFor(Reservation& reservation, uint32_t block_index)
      PREFIXD_REQUIRES(mutex);
  // Returns whether the block has these serials, or would have them in the tree.
  bool Stand(const Reservation& reservation, uint32_t block_index, Node& parent,
             const Serials& serials) const PREFIXD_REQUIRES(mutex);
  block::StoreResult Store(Reservation& reservation, uint32_t block_index, Node& parent,
                           std::span<const NewPage> pages, uint64_t serial) PREFIXD_REQUIRES(mutex);
  bool WantsFull(const Reservation& reservation, uint32_t block_index) const
      PREFIXD_REQUIRES(mutex);
  // Frees the extents of the snapshots among `pages` and returns the other pages.
  std::vector<NewPage> RefuseSnapshots(const SpaceShape& shape, std::span<const NewPage> pages)
      PREFIXD_REQUIRES(mutex);
  void AddPages(Node& node, std::span<const NewPage> pages) PREFIXD_REQUIRES(mutex);
  // Returns the first sibling in token order that holds the tokens up to `tokens`.
  // FailedPrecondition when it or a block before it is not stored.
  absl::StatusOr<Node*> StoredUpTo(Reservation& reservation, uint32_t tokens)
      PREFIXD_REQUIRES(mutex);

  // --- loose.cc ---
  void ReorderLoose(Node& node) PREFIXD_REQUIRES(mutex);
  // Has EvictWindows look again at the sliding pages of `node` and the blocks before it, because
  // what is below `node` changed.
  void LookAgain(Node* node) PREFIXD_REQUIRES(mutex);
  void GiveUp(Page& page, Evicted& evicted) PREFIXD_REQUIRES(mutex);  // the page's RAM copy
  std::optional<Evicted> EvictWindows() PREFIXD_REQUIRES(mutex);
  bool EvictSnapshots(bool may_drop_dirty) PREFIXD_REQUIRES(mutex);  // of the coldest block
  // Gives up the coldest snapshots, clean ones first, until `bytes` more are within the snapshots'
  // share. Returns false if that is not possible: what is left is held or busy.
  bool MakeSnapshotRoom(uint64_t bytes) PREFIXD_REQUIRES(mutex);
  // Drops the least missed snapshots of the chain that ends at `leaf` beyond kMaxSnapshots; those
  // that are held, busy or pinned stay.
  void TrimChain(Node& leaf) PREFIXD_REQUIRES(mutex);

  // --- evict.cc ---
  Evicted GiveUpRam(Node& node, bool may_drop_dirty, const std::function<bool(const Page&)>& may_go)
      PREFIXD_REQUIRES(mutex);
  Evicted Forget(Node& node) PREFIXD_REQUIRES(mutex);
  // Calls `drop`, in steps, for the leaves that may go, coldest first, and for parents that become
  // such leaves. Stops when `drop` returns false; otherwise it must take the leaf out of the tree.
  void DropColdest(const std::function<bool(const Node&)>& may_go,
                   const std::function<bool(Node&)>& drop) PREFIXD_EXCLUDES(mutex);
  uint64_t ClearBlock(Node& node) PREFIXD_REQUIRES(mutex);
  uint64_t ClearTree(Space& space) PREFIXD_REQUIRES(mutex);
  // Voids the space's reservations and ends its pins. Returns nullptr if there is no such space.
  Space* EndPlansAndPins(block::SpaceHandle handle) PREFIXD_REQUIRES(mutex);

  // --- spill.cc ---
  // Picks what must be written of `node` and its ancestors, parents first. Takes refused blocks
  // without a record only if `refused_too`. Returns false if the next block would bring `bytes`
  // above `max_bytes`; takes the first block of all whatever its size.
  bool PickChain(Node* node, bool refused_too, uint64_t max_bytes, std::vector<SpillBlock>& picked,
                 uint64_t& bytes) PREFIXD_REQUIRES(mutex);
  SpillBlock ForRecord(Node& node) PREFIXD_REQUIRES(mutex);  // fills all but the pages
  void Admit(Node& node) PREFIXD_REQUIRES(mutex);            // ends `refused`
  void BeginSpill(Node& node) PREFIXD_REQUIRES(mutex);       // lasts until EndSpill
  SpillBlock PickBlock(Node& node, uint64_t& bytes) PREFIXD_REQUIRES(mutex);
  void EndSpill(const SpillBlock& block) PREFIXD_REQUIRES(mutex);
  // Forgets the SSD copies and records under the sequences that `dropped` accepts. Returns the
  // bytes that became dirty. One call at a time, by drop_mutex.
  using IsDropped = std::function<bool(uint64_t sequence)>;
  uint64_t DropOnSsd(const IsDropped& dropped) PREFIXD_EXCLUDES(mutex);
  void DropCopies(Node& node, const IsDropped& dropped) PREFIXD_REQUIRES(mutex);

  // --- rewrite.cc ---
  SpillBlock PickAgain(Node& node, const RewriteOptions& range, bool pages) PREFIXD_REQUIRES(mutex);

  // --- restore.cc ---
  // Returns the full block in the tree that has this serial, also as a further one, or nullptr.
  Node* FindSerial(uint64_t serial) const PREFIXD_REQUIRES(mutex);
  absl::StatusOr<Node*> ParentBySerial(Space& space, uint64_t serial) const PREFIXD_REQUIRES(mutex);
  // Adds a further serial to a full block.
  void AddSerial(Node& node, uint64_t serial) PREFIXD_REQUIRES(mutex);
  // Require: inside a Change.
  void AddRestoredPages(Node& node, const RestoredBlock& block, bool states_only)
      PREFIXD_REQUIRES(mutex);
  void SetRecord(Node& node, const RestoredBlock& block) PREFIXD_REQUIRES(mutex);

  // --- adopt.cc ---
  Page& AddAdoptedPage(Node& node, const NewPage& page) PREFIXD_REQUIRES(mutex);
  // Drops the holds for earlier daemons' readers that no AdoptLease took over. Stamps adopted
  // blocks in order of last use.
  void EndAdoption() PREFIXD_EXCLUDES(mutex);

  absl::Status Validate() const PREFIXD_REQUIRES(mutex);

  const Options options;  // except the values in `limits`, which replace them
  Limits limits PREFIXD_GUARDED_BY(mutex);
  mutable base::HoldGauge longest_hold;
  mutable base::Mutex mutex{&longest_hold};
  mutable base::Combiner combiner{&mutex};  // of the calls that every request makes
  mutable base::CondVar promoted;
  mutable uint64_t comparisons PREFIXD_GUARDED_BY(mutex) = 0;

  absl::flat_hash_map<block::SpaceHandle, std::unique_ptr<Space>> spaces PREFIXD_GUARDED_BY(mutex);
  std::map<block::SpaceId, Space*> spaces_by_id PREFIXD_GUARDED_BY(mutex);
  uint64_t spaces_bytes PREFIXD_GUARDED_BY(mutex) = 0;      // sum of their memory_bytes
  NodePool nodes PREFIXD_GUARDED_BY(mutex);                 // all but the roots
  SerialTable by_serial PREFIXD_GUARDED_BY(mutex){&nodes};  // full blocks in the tree
  // Node ids by further serial, while records come back.
  absl::flat_hash_map<uint64_t, uint64_t> other_serials PREFIXD_GUARDED_BY(mutex);
  uint64_t next_serial PREFIXD_GUARDED_BY(mutex) = 0;     // starts at a random number; 0: not yet
  uint64_t children_bytes PREFIXD_GUARDED_BY(mutex) = 0;  // sum of Children::MemoryBytes
  Totals totals PREFIXD_GUARDED_BY(mutex);                // of all nodes
  const std::unique_ptr<EvictionPolicy> eviction PREFIXD_GUARDED_BY(mutex) = MakeSparingLru(totals,
                                                                                            limits);
  LooseOrder windows PREFIXD_GUARDED_BY(mutex), snapshots PREFIXD_GUARDED_BY(mutex);
  Order spill_order PREFIXD_GUARDED_BY(mutex);       // want a spill; no descendant wants one
  Order unverified_order PREFIXD_GUARDED_BY(mutex);  // blocks with kUnverified pages
  Ghosts ghosts PREFIXD_GUARDED_BY(mutex);
  std::vector<block::Extent> freed PREFIXD_GUARDED_BY(mutex);
  std::atomic<bool> any_freed{false};  // so that TakeFreed need not lock to see that there is none
  std::atomic<uint64_t> memory_seen{0}, tables_seen{0};  // of MemorySeen
  std::vector<Condemned> condemned PREFIXD_GUARDED_BY(mutex);
  bool any_refused PREFIXD_GUARDED_BY(mutex) = false;  // since the last AdmitAll
  uint64_t evicted_snapshots PREFIXD_GUARDED_BY(mutex) = 0;
  uint64_t refused_snapshots PREFIXD_GUARDED_BY(mutex) = 0;
  // Until EndAdoption: holds of pages whose marks name readers, and last uses of adopted pages.
  HeldPath adoption PREFIXD_GUARDED_BY(mutex);
  std::vector<AdoptedUse> adopted_uses PREFIXD_GUARDED_BY(mutex);
  absl::flat_hash_map<block::LeaseId, Lease> leases PREFIXD_GUARDED_BY(mutex);
  // Paths that leases may join.
  absl::flat_hash_map<SharedName, std::weak_ptr<HeldPath>> shared_paths PREFIXD_GUARDED_BY(mutex);
  absl::flat_hash_map<block::PinId, PinnedPath> pins PREFIXD_GUARDED_BY(mutex);
  absl::flat_hash_map<block::ReservationId, std::unique_ptr<Reservation>> reservations
      PREFIXD_GUARDED_BY(mutex);
  absl::flat_hash_map<block::SessionId, Session> sessions PREFIXD_GUARDED_BY(mutex);
  uint64_t table_bytes PREFIXD_GUARDED_BY(mutex) = 0;  // of leases, pins, reservations; estimated
  uint64_t next_id PREFIXD_GUARDED_BY(mutex) = 1;      // of leases, pins and reservations
  int64_t next_stamp PREFIXD_GUARDED_BY(mutex) = 1;
  Ages ages PREFIXD_GUARDED_BY(mutex);
  std::atomic<uint64_t> last_event{0};
  EventLog events PREFIXD_GUARDED_BY(mutex){options.max_events, &last_event};
  base::Mutex drop_mutex{"Index::drop_mutex"};  // held by DropOnSsd, taken before `mutex`
  // What the DropOnSsd under way drops, so that it does not miss snapshots that change their block
  // meanwhile; null if none is.
  IsDropped dropping PREFIXD_GUARDED_BY(mutex);
  bool loading PREFIXD_GUARDED_BY(mutex) = false;   // blocks without pages stay: children may come
  bool adopting PREFIXD_GUARDED_BY(mutex) = false;  // from the first Adopt to EndAdoption
};

}  // namespace prefixd::index
