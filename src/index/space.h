// What the index keeps beside blocks: spaces, leases, pins, reservations, sessions, ghosts, totals.
//
// Internal to index/. Plain data without locks; every field is guarded by the index's mutex.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "index/node.h"

namespace prefixd::index {

// What one node adds to the sums that the index reports. The index updates the sums by differences;
// Validate() recomputes them.
struct Totals {
  // Of blocks in the tree.
  uint64_t blocks = 0, holes = 0, ends = 0, stored_tokens = 0;
  uint64_t ram_payload = 0, ram_extents = 0, ssd_payload = 0, ssd_pages = 0;
  uint64_t dirty_bytes = 0, clean_bytes = 0;
  // Of every node, each page once. kept_bytes: leased or pinned.
  uint64_t leased_bytes = 0, pinned_bytes = 0, kept_bytes = 0;
  uint64_t memory_bytes = 0;
  // Parts of ram_extents: of snapshots, and of blocks that were read again since they were stored.
  uint64_t snapshot_extents = 0, read_again_extents = 0;

  bool operator==(const Totals&) const = default;
  Totals& operator+=(const Totals& other);
  Totals& operator-=(const Totals& other);
};
Totals TotalsOf(const Node& node);
// Changes of one space's totals by a call that takes hold of pages or lets them go.
struct LeasedSums {
  Space* space = nullptr;
  // Modulo 2^64.
  uint64_t leased_bytes = 0, kept_bytes = 0, clean_bytes = 0, memory_bytes = 0;
  uint64_t read_again_extents = 0;
  void Add(const Node& node, const Page& page);     // the page's first holder came
  void Remove(const Node& node, const Page& page);  // the page's last holder went
};

// Numbers for the pairs of sizes that a space's pages have. They are few: a layout makes them.
class PageSizes {
 public:
  struct Pair {
    uint64_t page_bytes = 0, payload_bytes = 0;
    bool operator==(const Pair&) const = default;
    template <typename H>
    friend H AbslHashValue(H hash, const Pair& pair) {
      return H::combine(std::move(hash), pair.page_bytes, pair.payload_bytes);
    }
  };
  // Adds the pair if it is new. Returns nullopt if it is and there are 65,535 others.
  std::optional<uint16_t> NumberOf(const Pair& pair);
  const Pair& At(uint16_t number) const { return pairs_[number]; }
  uint64_t MemoryBytes() const {
    return pairs_.capacity() * sizeof(Pair) + numbers_.capacity() * (sizeof(Pair) + 9);
  }

 private:
  std::vector<Pair> pairs_ = {{}};  // 0: of an empty slot
  absl::flat_hash_map<Pair, uint16_t> numbers_;
  uint16_t last_ = 0;  // found last; mostly asked for next too
};

absl::Status TooManySizes();

// About what a space takes in the tables by handle and by id and in its shape's allocations.
inline constexpr uint64_t kSpaceInTables = 256;

struct Space {
  Space(SpaceShape shape, block::SpaceHandle handle, const block::BlockHasher* hasher,
        uint64_t* comparisons, NodePool* pool)
      : shape(std::move(shape)),
        handle(handle),
        hasher(hasher),
        comparisons(comparisons),
        memory_bytes(sizeof(Space) + kSpaceInTables + this->shape.owner_bytes) {
    root_chunk.head = {.space = this, .pool = pool, .root = &root};
    root.SetTokens(0, {}, 0, 0);
    for (const GroupRule& rule : this->shape.rules) {
      regular = regular && rule.kind == block::LayerKind::kFull;
      longest_window = std::max(longest_window, rule.window);
    }
  }

  SpaceShape shape;
  block::SpaceHandle handle;
  bool regular = true;  // every group is kFull
  uint32_t longest_window = 0;
  const block::BlockHasher* const hasher;  // the index's
  uint64_t* const comparisons;             // the index's count for all spaces (IndexCounts)
  PageSizes sizes;
  struct {
    ChunkHead head;
    Node node;
  } root_chunk;
  Node& root = root_chunk.node;
  Totals totals;
  block::SpaceLimits limits;
  uint64_t nodes = 0;           // its nodes without the root, in the tree and out of it
  uint64_t leases = 0;          // leases on its pages
  const uint64_t memory_bytes;  // without its nodes
};

// A selection with defaults filled in: which rungs of which groups are usable.
struct Usable {
  struct Group {
    uint16_t group = 0;
    uint64_t rungs = 0;  // bit mask; 0 for a state group
    GroupRule rule{};
    bool full() const { return rule.kind == block::LayerKind::kFull; }
    bool state() const { return rule.kind == block::LayerKind::kState; }
  };
  std::vector<Group> groups;
  bool has_mask = false;  // some rung of a selected group is not usable
  bool regular = true;    // every group is kFull
};
Usable UsableOf(const SpaceShape& shape, const Selection& selection);
Usable AnyRung(const Usable& usable);
Usable OnlyFull(const Usable& usable);
Usable WithoutStates(const Usable& usable);
inline bool IsUsable(const Page& page, const Usable::Group& group) {
  return Present(page) && page.rung() < 64 && (group.rungs >> page.rung() & 1) != 0;
}
// Returns the finest present page of the group in a usable rung, or nullptr.
const Page* BestPage(const Node& node, const Usable::Group& group);
// Returns whether every selected group has a page in a usable rung; false if none is selected.
bool Serves(const Node& node, const Usable& usable);

// Returns the bit of a session's slot in the marks; 0 if it has none.
inline uint64_t BitOf(uint32_t slot) { return slot < block::kArenaSlots ? uint64_t{1} << slot : 0; }

struct HeldPage {
  Node* node = nullptr;
  uint32_t first_token = 0;  // of the node
  uint16_t group = 0;
  uint16_t rung = 0;
  uint64_t charge = 0;  // against the session's quota
};
// The last block of a path that leases share, and a number for the forms of its pages.
using SharedName = std::pair<const Node*, uint64_t>;
// The pages that leases hold together: one lease, or several that asked for the same sequence.
// Their blocks count it as one holder, so hits of one prompt on many cores only read them: a lease
// that joins writes to them if its slot is new there, if the marks' last use is a millisecond old
// or the stamps a second, and while Node::touches is not at its end.
struct HeldPath {
  std::vector<HeldPage> pages;  // by first_token, then by group
  uint64_t charge = 0;          // of all pages, as they were when the first lease took hold
  SharedName name{};            // its own in Impl::shared_paths; null if it never was there
  // Slots whose bits every page has, and the last use that the pages' marks say.
  uint64_t slots = 0;
  int64_t marked_us = 0;
  // The stamps that the latest lease drew for the blocks, leaf first; 0: the blocks have theirs.
  // They get these when the path is let go, or when a lease joins long after `stamped_us`.
  int64_t first_stamp = 0;
  int64_t stamped_us = 0;
};

struct Lease {
  block::SessionId session;
  uint32_t slot = block::kNoSlot;
  Space* space = nullptr;
  Usable usable;
  // The lease covers [from, tokens) of a sequence; nothing if both are 0 (AdoptLease).
  uint32_t from = 0, tokens = 0;
  bool reads = false;  // a request's own: blocks it takes hold of are touched once more
  std::shared_ptr<HeldPath> held = nullptr;  // set when it takes hold

  const std::vector<HeldPage>& pages() const { return held->pages; }
  bool shares() const { return held.use_count() > 1; }
};

uint64_t MemoryOf(const Lease& lease);  // without the pages
uint64_t MemoryOf(const HeldPath& held);

enum class PlanState : uint8_t { kMissing, kPresent, kPublished };
struct Reservation {
  block::SessionId session;
  Space* space = nullptr;  // nullptr if the space was cleared
  std::vector<block::Token> tokens;
  std::vector<block::ContentKey> content;
  Usable usable;
  uint32_t block_tokens = 0;  // of the space
  size_t groups = 0;
  std::vector<block::BlockPlan> blocks;
  std::vector<PlanState> states;
  // The deepest full block of the sequence known to be in the tree, its `hold_blocks`th; nullptr
  // for the root. It and its ancestors stay in the tree.
  Node* hold = nullptr;
  uint32_t hold_blocks = 0;
  Node* tail = nullptr;  // the partial last block, once published

  block::SequenceView view() const { return {tokens, content}; }
};

struct PinnedPath {
  block::SessionId session;
  Space* space = nullptr;
  uint32_t tokens = 0;
  uint64_t charge = 0;  // against the session's quota
  // Block by block. MovePins replaces a block by the longer sibling that supersedes it.
  std::vector<Node*> nodes;
};
uint64_t MemoryOf(const PinnedPath& path);

struct Session {  // kept while it has a lease or a pin
  uint64_t leased_bytes = 0, leases = 0;
  uint64_t pinned_bytes = 0, pins = 0;
  bool empty() const { return leases == 0 && pins == 0; }
  bool operator==(const Session&) const = default;
};

// Hashes of blocks that left the tree. Forgets the oldest first beyond `limit`.
class Ghosts {
 public:
  explicit Ghosts(uint32_t limit) : limit_(limit) {}
  void Add(const block::BlockHash& hash);
  void Remove(const block::BlockHash& hash) { serials_.erase(hash); }
  bool Contains(const block::BlockHash& hash) const { return serials_.contains(hash); }
  size_t size() const { return serials_.size(); }
  uint64_t MemoryBytes() const;

 private:
  void ForgetOldest();

  const uint32_t limit_;
  uint64_t next_serial_ = 1;
  absl::flat_hash_map<block::BlockHash, uint64_t> serials_;
  std::deque<std::pair<uint64_t, block::BlockHash>> by_age_;  // may name hashes removed since
};

}  // namespace prefixd::index
