// What the index keeps of a block: its tokens, its place in the tree, its pages and who needs them.
//
// Internal to index/. Plain data without locks; every field is guarded by the index's mutex.
#pragma once
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/btree_set.h"

#include "block/tokens.h"
#include "index/children.h"
#include "index/page.h"
#include "index/prefix_index.h"

namespace prefixd::index {

class NodePool;
struct Space;

// Bit k - 1: a sequence ends after k tokens of the block. An end shared by several siblings (their
// first k tokens are equal) stands at the first of them in token order only.
using EndSet = std::bitset<128>;

// A block's place in an order by last use.
struct OrderKey {
  int64_t stamp = 0;
  uint64_t id = 0;
  Node* node = nullptr;
  auto operator<=>(const OrderKey& other) const = default;
};
using Order = absl::btree_set<OrderKey>;

// Where in the eviction policy's orders a block stands.
enum class EvictPlace : uint8_t { kNone, kClean, kDirty };

// Blocks stand in chunks, each of one space, behind its head; a root in a chunk of its own, which
// is not in the pool.
inline constexpr uint32_t kChunkNodes = 64;
struct ChunkHead {
  Space* space = nullptr;
  NodePool* pool = nullptr;
  Node* root = nullptr;  // of the space
  uint64_t used = 0;     // bit: there is one
  uint32_t number = 0;
};

// What few blocks have. One end, which the record says or has none of, is not rare.
struct RareParts {
  std::vector<block::ContentKey> content;
  EndSet ends, record_ends;
  std::vector<uint64_t> other_serials;
  block::BlockHash parent_hash{};  // outside the tree, of a block with snapshots
  uint64_t record_sequence = 0;    // one that is too large for a Node
  uint32_t holds = 0;              // reservations among the pins: the node is not pruned
  uint32_t pinned = 0;             // Pin()s among them: its pages stay, in RAM
};

// There may be one for every few hundred bytes that the SSD holds, so every byte counts. Its
// serial, its pages and its tokens stand in one allocation, its parent's hash at its parent; of its
// parent and its only child it has their numbers in the pool.
struct Node {
 private:
  // If it has any, the address of its rare parts; its serial; page_slots_ pages, page_count_ of
  // them there; the tokens.
  std::byte* body_ = nullptr;

 public:
  int64_t stamp = 0;
  block::BlockHash hash{};

 private:
  uint64_t record_sequence_ : 40 = 0;  // kInRare: there
  uint64_t end_ : 8 = 0;               // without rare parts: of its one end, in tokens

 public:
  uint64_t touches : 2 = 0;  // requests that took hold of it since it was stored, saturating
  bool in_tree : 1 = false;
  bool spilling : 1 = false;
  bool refused : 1 = false;    // dirty, and the SSD does not want it: given up as a clean block is
  bool was_ghost : 1 = false;  // it was a ghost or a hole when it was stored
  EvictPlace in_evict_order : 2 = EvictPlace::kNone;  // the eviction policy's own
  bool windows_needed : 1 = false;  // its sliding pages, when that was last looked at
  bool counted_ram : 1 = false, counted_spill : 1 = false;  // in its parent's children
  bool record_written : 1 = false;  // the record on SSD stands there, and says record_ends
  bool record_wanted : 1 = false;   // it must be written again without a dirty page
  // Under its stamp, which changes by Impl::SetStamp only.
  bool in_spill_order : 1 = false, in_unverified_order : 1 = false;

 private:
  bool has_rare_ : 1 = false;
  uint32_t parent_ = kNoParent;  // its number, or one of these
  uint32_t children_ = 0;        // Children's own
  uint32_t place_ = 0;           // its place in its chunk; above it which one it is of those there
  uint32_t first_token_ : 21 = 0, size_ : 8 = 0;

 public:
  bool in_by_serial : 1 = false;

 private:
  bool record_says_end_ : 1 = false;  // without rare parts
  uint16_t page_count_ = 0, page_slots_ = 0;

 public:
  uint32_t pins = 0;  // lease holders, reservations, a spill, promotions: the node is not deleted
  uint32_t subtree_ends = 0;    // own ends and those of all descendants
  uint32_t next_by_serial = 0;  // SerialTable's own

  Node() = default;
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  Space* space() const { return Head().space; }
  NodePool& pool() const { return *Head().pool; }
  // Its place in the pool; and what tells it from those that had the place before, too.
  uint32_t number() const { return Head().number * kChunkNodes + place_ % kChunkNodes; }
  uint64_t id() const { return uint64_t{place_ / kChunkNodes} << 32 | number(); }

  Node* parent() const;  // nullptr for a root and outside the tree
  void set_parent(const Node* parent);
  // The view writes through to the block.
  Children children() { return Children(this); }
  const Children children() const { return Children(const_cast<Node*>(this)); }

  // A number that no other block of this cache ever had: records name a block's parent by it. 0 of
  // a root and of a block that is not full.
  uint64_t serial() const {
    uint64_t serial = 0;
    std::memcpy(&serial, AfterRare(), sizeof(serial));
    return serial;
  }
  // It was given up, stored again under its serial, and then the first record was found: children's
  // records may name either.
  std::span<const uint64_t> other_serials() const {
    return has_rare_ ? Parts().other_serials : std::span<const uint64_t>();
  }
  // Inside a Change; may move tokens and pages. The oldest goes where there are too many. False:
  // it has it already.
  bool AddSerial(uint64_t serial);
  uint32_t first_token() const { return first_token_; }
  std::span<const block::Token> tokens() const {
    return {reinterpret_cast<const block::Token*>(AfterPages()), size()};
  }
  std::span<const block::ContentKey> content() const {
    return has_rare_ ? Parts().content : std::span<const block::ContentKey>();
  }
  block::SequenceView view() const { return {tokens(), content()}; }
  uint32_t size() const { return size_; }
  bool is_root() const { return size_ == 0; }
  // Once, with room for pages. Requires: at most 128 tokens, all within kMaxSequenceTokens.
  void SetTokens(uint32_t first_token, const block::SequenceView& tokens, uint64_t serial,
                 uint32_t page_slots);

  // By group, then rung; kGone ones stay while somebody holds them. Where they stand changes with
  // InsertPage and ErasePages.
  std::span<Page> pages() { return {AfterSerial(), page_count_}; }
  std::span<const Page> pages() const { return {AfterSerial(), page_count_}; }
  Page& InsertPage(size_t at, const Page& page);
  // Those that are gone and that nobody holds.
  void EraseGone();

  EndSet ends() const { return has_rare_ ? Parts().ends : OneEnd(); }
  EndSet record_ends() const {
    return has_rare_ ? Parts().record_ends : record_says_end_ ? OneEnd() : EndSet();
  }
  // Both inside a Change; may move tokens and pages.
  void set_ends(const EndSet& ends);
  void set_record_ends(const EndSet& ends);
  uint32_t holds() const { return has_rare_ ? Parts().holds : 0; }
  uint32_t pinned() const { return has_rare_ ? Parts().pinned : 0; }
  // To change one of these, inside a Change. Moves tokens and pages if there were none.
  RareParts& rare();
  // Takes back what is said by default.
  void FoldRare();
  const block::BlockHash& parent_hash() const;
  // Of the record on SSD; 0: none. Changes inside a Change; may move tokens and pages.
  uint64_t record_sequence() const {
    return record_sequence_ == kInRare ? Parts().record_sequence : record_sequence_;
  }
  void set_record_sequence(uint64_t sequence);
  uint64_t MemoryBytes() const;  // but for itself and its children

 private:
  friend class Children;
  friend class NodePool;
  static constexpr uint32_t kNoParent = ~uint32_t{0}, kRootIsParent = kNoParent - 1;
  static constexpr uint64_t kInRare = (uint64_t{1} << 40) - 1;

  const ChunkHead& Head() const {
    return *(reinterpret_cast<const ChunkHead*>(this - place_ % kChunkNodes) - 1);
  }
  EndSet OneEnd() const { return end_ == 0 ? EndSet() : EndSet().set(end_ - 1); }
  std::byte* AfterRare() const { return body_ + (has_rare_ ? sizeof(RareParts*) : 0); }
  Page* AfterSerial() const { return reinterpret_cast<Page*>(AfterRare() + sizeof(uint64_t)); }
  std::byte* AfterPages() const {
    return reinterpret_cast<std::byte*>(AfterSerial() + page_slots_);
  }
  RareParts& Parts() const { return **reinterpret_cast<RareParts**>(body_); }
  uint64_t BodyBytes() const;
  void Rebuild(size_t slots, RareParts* rare);
};
static_assert(sizeof(Node) == 72);

// How many pages it has of each kind.
struct PageCounts {
  uint32_t present = 0, ram = 0, dirty = 0, held = 0, busy = 0, unverified = 0;
};
PageCounts CountPages(const Node& node);
bool AnyPresent(const Node& node);
bool AnyInRam(const Node& node);

// Of a page, in RAM or not.
uint64_t PageBytes(const Node& node, const Page& page);
uint64_t PayloadBytes(const Node& node, const Page& page);
// What a holder of the page keeps from others: its extent, or the room it will need in RAM.
inline uint64_t BytesOf(const Node& node, const Page& page) {
  return page.has_extent() ? page.extent().bytes : PageBytes(node, page);
}

// nullptr when the node has no slot for it.
Page* FindPage(Node& node, uint32_t group, uint32_t rung);
const Page* FindPage(const Node& node, uint32_t group, uint32_t rung);
// Its slot, a kGone one if there was none. Moves the node's other pages.
Page& SlotFor(Node& node, uint32_t group, uint32_t rung);
// True when every present page of `node` is present in `other` too, in the same group and rung;
// snapshots aside.
bool Covers(const Node& other, const Node& node);
bool HasSnapshots(const Node& node);
// Whether its snapshots may move to another block: nobody holds them, reads or writes them.
bool SnapshotsMayMove(const Node& node);
// Of the block that the first tokens of a snapshot's block make: what its name is made of.
block::BlockHash HashOfPrefix(const Node& node, uint32_t tokens);
void Describe(Node& node, const Page& page, PageInfo& info);
PageInfo InfoOf(Node& node, const Page& page);
// The node's ends as token counts, and into the marks of its pages.
std::vector<uint32_t> ListEnds(const EndSet& ends);
void WriteEnds(const Node& node);
// As the marks of a page say them: of a snapshot those in its own tokens.
std::array<uint64_t, 2> EndsIn(const Node& node, const Page& page);
// Everything of the marks of a page that was just given an extent.
void WriteMarks(const Node& node, const Page& page, int64_t now);
// The content of `tokens` [begin, end) cut out of a sequence, with storage for its content keys.
class Slice {
 public:
  Slice(const block::SequenceView& sequence, uint32_t begin, uint32_t end);
  Slice(const Slice&) = delete;
  Slice& operator=(const Slice&) = delete;
  const block::SequenceView& view() const { return view_; }
  uint32_t size() const { return static_cast<uint32_t>(view_.tokens.size()); }

 private:
  std::vector<block::ContentKey> content_;
  block::SequenceView view_;
};
// The first `count` positions of a block or slice (keys may reach past them: comparing is by
// position).
inline block::SequenceView Head(const block::SequenceView& view, uint32_t count) {
  return {view.tokens.first(count), view.content};
}

}  // namespace prefixd::index
