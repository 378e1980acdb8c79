// What the index keeps of a block: its tokens, its place in the tree, its pages and their users.
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

// Bit k - 1 is set if a sequence ends after k tokens of the block. If several siblings share an end
// (their first k tokens are equal), only the first of them in token order has it.
using EndSet = std::bitset<128>;

// A block's place in an order by last use.
struct OrderKey {
  int64_t stamp = 0;
  uint64_t id = 0;
  Node* node = nullptr;
  auto operator<=>(const OrderKey& other) const = default;
};
using Order = absl::btree_set<OrderKey>;

// Which of the eviction policy's orders a block stands in.
enum class EvictPlace : uint8_t { kNone, kClean, kDirty };

// The nodes of a chunk belong to one space and follow the chunk's head in memory. A root has a
// chunk of its own, which is not in the pool.
inline constexpr uint32_t kChunkNodes = 64;
struct ChunkHead {
  Space* space = nullptr;
  NodePool* pool = nullptr;
  Node* root = nullptr;  // of the space
  uint64_t used = 0;     // bit i is set if place i has a node
  uint32_t number = 0;
};

// What few blocks have. A single end is not rare if the record on SSD has the same end or none.
struct RareParts {
  std::vector<block::ContentKey> content;
  EndSet ends, record_ends;
  std::vector<uint64_t> other_serials;
  block::BlockHash parent_hash{};  // of a block with snapshots that left the tree
  uint64_t record_sequence = 0;    // if it is too large for Node::record_sequence_
  uint32_t holds = 0;              // reservations among Node::pins: the node is not pruned
  uint32_t pinned = 0;             // Pin()s among Node::pins: the pages stay, those in RAM in RAM
};

// A block. There may be one for every few hundred bytes that the SSD holds, so every byte counts.
// One allocation has its serial, its pages and its tokens; its parent has the parent's hash. It
// names its parent and its only child by their numbers in the pool.
struct Node {
 private:
  // The address of the rare parts if has_rare_; the serial; page_slots_ slots for pages, of which
  // the first page_count_ are in use; the tokens.
  std::byte* body_ = nullptr;

 public:
  int64_t stamp = 0;
  block::BlockHash hash{};

 private:
  uint64_t record_sequence_ : 40 = 0;  // kInRare: the rare parts have it
  uint64_t end_ : 8 = 0;               // without rare parts: its one end in tokens, 0 if none

 public:
  uint64_t touches : 2 = 0;  // requests that took hold of it since it was stored, saturating
  bool in_tree : 1 = false;
  bool spilling : 1 = false;
  bool refused : 1 = false;    // the SSD does not take its dirty pages: given up as a clean block
  bool was_ghost : 1 = false;  // it was a ghost or a hole when it was stored
  EvictPlace in_evict_order : 2 = EvictPlace::kNone;  // the eviction policy's own
  bool windows_needed : 1 = false;  // EvictWindows found that its sliding pages are needed
  bool counted_ram : 1 = false, counted_spill : 1 = false;  // in its parent's Children
  bool record_written : 1 = false;  // SSD has its record, with the ends record_ends
  bool record_wanted : 1 = false;   // its record must be written even if no page is dirty
  // It stands in the order under its stamp, which only Impl::SetStamp changes.
  bool in_spill_order : 1 = false, in_unverified_order : 1 = false;

 private:
  bool has_rare_ : 1 = false;
  uint32_t parent_ = kNoParent;  // the parent's number, kNoParent or kRootIsParent
  uint32_t children_ = 0;        // Children's own
  uint32_t place_ = 0;  // low 6 bits: its place in its chunk; above: a number that tells uses apart
  uint32_t first_token_ : 21 = 0, size_ : 8 = 0;

 public:
  bool in_by_serial : 1 = false;

 private:
  bool record_says_end_ : 1 = false;  // without rare parts: its record has its one end
  uint16_t page_count_ = 0, page_slots_ = 0;

 public:
  // Holds of pages by leases, of the node by reservations, Pin()s, a spill and promotions. While
  // there is one the node is not deleted.
  uint32_t pins = 0;
  uint32_t subtree_ends = 0;    // own ends and those of all descendants
  uint32_t next_by_serial = 0;  // SerialTable's own

  Node() = default;
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  Space* space() const { return Head().space; }
  NodePool& pool() const { return *Head().pool; }
  // number() is its place in the pool; id() also tells it from nodes that had the place before.
  uint32_t number() const { return Head().number * kChunkNodes + place_ % kChunkNodes; }
  uint64_t id() const { return uint64_t{place_ / kChunkNodes} << 32 | number(); }

  Node* parent() const;  // nullptr for a root and for a block that left the tree
  void set_parent(const Node* parent);
  // The view writes through to the node.
  Children children() { return Children(this); }
  const Children children() const { return Children(const_cast<Node*>(this)); }

  // Returns a number that no other block of this cache ever had; records name a block's parent by
  // it. 0 for a root and for a block that is not full.
  uint64_t serial() const {
    uint64_t serial = 0;
    std::memcpy(&serial, AfterRare(), sizeof(serial));
    return serial;
  }
  // Further serials by which children's records may name the block: it was given up and stored
  // again under a new serial, then the earlier record was found.
  std::span<const uint64_t> other_serials() const {
    return has_rare_ ? Parts().other_serials : std::span<const uint64_t>();
  }
  // Requires: inside a Change. May move tokens and pages. Drops the oldest further serial if there
  // are 8. Returns false if the block has this serial already, or it is 0.
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
  // Whether a request took hold of it since it was stored, as far as the index saw.
  bool read_again() const { return touches > 0; }
  // Called once. Makes room for `page_slots` pages. Requires: at most 128 tokens, all within
  // block::kMaxTokens.
  void SetTokens(uint32_t first_token, const block::SequenceView& tokens, uint64_t serial,
                 uint32_t page_slots);

  // The pages by group, then rung; kGone ones stay while somebody holds them. InsertPage, EraseGone
  // and changes of the rare parts move them.
  std::span<Page> pages() { return {AfterSerial(), page_count_}; }
  std::span<const Page> pages() const { return {AfterSerial(), page_count_}; }
  Page& InsertPage(size_t at, const Page& page);
  // Removes pages that are gone and that nobody holds.
  void EraseGone();

  EndSet ends() const { return has_rare_ ? Parts().ends : OneEnd(); }
  EndSet record_ends() const {
    return has_rare_ ? Parts().record_ends : record_says_end_ ? OneEnd() : EndSet();
  }
  // Require: inside a Change. May move tokens and pages.
  void set_ends(const EndSet& ends);
  void set_record_ends(const EndSet& ends);
  uint32_t holds() const { return has_rare_ ? Parts().holds : 0; }
  uint32_t pinned() const { return has_rare_ ? Parts().pinned : 0; }
  // Returns the rare parts to change them; makes them, moving tokens and pages, if there were none.
  // Requires: inside a Change.
  RareParts& rare();
  // Deletes the rare parts, moving tokens and pages, if the Node itself can say what they say.
  void FoldRare();
  const block::BlockHash& parent_hash() const;
  // Sequence of the record on SSD; 0 if there is none. Setting it requires a Change and may move
  // tokens and pages.
  uint64_t record_sequence() const {
    return record_sequence_ == kInRare ? Parts().record_sequence : record_sequence_;
  }
  void set_record_sequence(uint64_t sequence);
  uint64_t MemoryBytes() const;  // without the Node itself and its Children

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

// Numbers of a node's pages by kind.
struct PageCounts {
  uint32_t present = 0, ram = 0, dirty = 0, held = 0, busy = 0, unverified = 0;
  uint32_t unverified_dirty = 0;  // of the unverified pages those that are not on SSD
};
PageCounts CountPages(const Node& node);
bool AnyPresent(const Node& node);
bool AnyInRam(const Node& node);

// Return the sizes of a page, in RAM or not.
uint64_t PageBytes(const Node& node, const Page& page);
uint64_t PayloadBytes(const Node& node, const Page& page);
// Returns what a holder of the page keeps from others: the bytes of its extent, or those it will
// need in RAM.
inline uint64_t BytesOf(const Node& node, const Page& page) {
  return page.has_extent() ? page.extent().bytes : PageBytes(node, page);
}

// Returns nullptr when the node has no slot for the page.
Page* FindPage(Node& node, uint32_t group, uint32_t rung);
const Page* FindPage(const Node& node, uint32_t group, uint32_t rung);
// Returns the page's slot. Inserts a kGone page if there is none, which moves the node's other
// pages.
Page& SlotFor(Node& node, uint32_t group, uint32_t rung);
// Returns true when every present page of `node` is present in `other` too, in the same group and
// rung; snapshots do not count.
bool Covers(const Node& other, const Node& node);
bool HasSnapshots(const Node& node);
// Returns whether the node's snapshots may move to another block: nobody holds, reads or writes
// them.
bool SnapshotsMayMove(const Node& node);
// Returns the hash of the block that the node's first `tokens` tokens would make: the name of a
// snapshot there.
block::BlockHash HashOfPrefix(const Node& node, uint32_t tokens);
void Describe(Node& node, const Page& page, PageInfo& info);
PageInfo InfoOf(Node& node, const Page& page);
// Returns ends as token counts, ascending.
std::vector<uint32_t> ListEnds(const EndSet& ends);
// Writes the node's ends into the marks of its pages.
void WriteEnds(const Node& node);
// Returns a page's ends as its marks have them; for a snapshot only those within its own tokens.
std::array<uint64_t, 2> EndsIn(const Node& node, const Page& page);
// Writes all marks of a page that was just given an extent. Does nothing if it has no marks.
void WriteMarks(const Node& node, const Page& page, int64_t now);
// Positions [begin, end) of a sequence, with storage for the content keys.
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
// Returns the first `count` positions of a block or slice. Its keys may reach past them: comparing
// is by position.
inline block::SequenceView Head(const block::SequenceView& view, uint32_t count) {
  return {view.tokens.first(count), view.content};
}

}  // namespace prefixd::index
