// What the index keeps of a block: its tokens, its place in the tree, its pages and who needs them.
//
// Internal to index/. Plain data without locks; every field is guarded by the index's mutex.
#pragma once
#include <array>
#include <bitset>
#include <cstdint>
#include <vector>

#include "absl/container/btree_set.h"

#include "block/tokens.h"
#include "index/prefix_index.h"

namespace prefixd::index {

struct Space;

struct Page {
  uint16_t group = 0;
  uint16_t rung = 0;  // of a snapshot: its offset in the block
  PageState state = PageState::kGone;
  bool moving = false;     // picked for a move; cleared when the extent changes
  bool condemned = false;  // an extent of it waits in Impl::condemned for its last holder
  uint32_t holders = 0;    // leases
  uint64_t page_bytes = 0;
  uint64_t payload_bytes = 0;
  uint64_t check = 0;
  block::Extent extent{};     // InRam(state), kUnverified, or kPromoting from kUnverified
  uint64_t ssd_sequence = 0;  // kPromoting with 0: no SSD copy, or it was dropped while it was read
  block::PageMarks* marks = nullptr;  // of the extent; nullptr when it has none
  uint64_t slots = 0;  // whose bits are set since the last holder went; what marks->holders says
};

inline bool Present(const Page& page) { return page.state != PageState::kGone; }
inline bool OnSsd(const Page& page) { return page.ssd_sequence != 0; }
// Being written out, read back or not checked yet: nothing may move it.
inline bool Busy(PageState s) {
  return s == PageState::kSpilling || s == PageState::kPromoting || s == PageState::kUnverified;
}
// What a holder of the page keeps from others: its extent, or the room it will need in RAM.
inline uint64_t BytesOf(const Page& page) {
  return page.extent ? page.extent.bytes : page.page_bytes;
}

// Children in token order; lookups take the tokens themselves.
struct ChildLess {
  using is_transparent = void;
  uint64_t* comparisons = nullptr;
  bool operator()(const Node* a, const Node* b) const;
  bool operator()(const Node* a, const block::SequenceView& b) const;
  bool operator()(const block::SequenceView& a, const Node* b) const;
};
using Children = absl::btree_set<Node*, ChildLess>;

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

// Whether it stands in an order now, and under which stamp.
struct OrderPlace {
  Order* order = nullptr;
  int64_t stamp = 0;
};

// Fields in the order in which a walk down and a lease touch them: long prompts are thousands of
// blocks, and what counts is how many cache lines of each are looked at.
struct alignas(64) Node {
  Node(Node* parent, ChildLess less) : parent(parent), children(less) {}

  // The walk.
  Node* likely_child = nullptr;      // the youngest: most blocks have one; nullptr without children
  std::vector<block::Token> tokens;  // empty for a root
  std::vector<block::ContentKey> content;
  bool in_tree = false;
  bool spilling = false;
  uint8_t touches = 0;          // requests that took hold of it since it was stored, saturating
  bool refused = false;         // dirty, and the SSD does not want it: given up as a clean block is
  bool was_ghost = false;       // it was a ghost or a hole when it was stored
  bool windows_needed = false;  // its sliding pages, when that was last looked at
  uint32_t first_token = 0;

  // Leases. Counts of pages are kept by Impl::Refresh.
  std::vector<Page> pages;  // by group, then rung; kGone ones stay while somebody holds them
  Node* parent;             // nullptr for a root and outside the tree
  Space* space = nullptr;
  uint64_t id = 0;
  uint32_t present = 0, ram = 0, dirty = 0, held = 0;

  uint32_t busy = 0, unverified = 0;      // pages that are Busy(), that are kUnverified
  uint32_t ram_kids = 0, spill_kids = 0;  // children whose subtree has RAM pages, wants a spill
  uint32_t pins = 0;    // lease holders, reservations, a spill, promotions: the node is not deleted
  uint32_t holds = 0;   // reservations among them: the node is not pruned
  uint32_t pinned = 0;  // Pin()s among them: its pages stay, in RAM
  int64_t stamp = 0;
  OrderPlace in_evict_order;  // the eviction policy's own
  block::BlockHash hash{}, parent_hash{};

  OrderPlace in_spill_order, in_unverified_order;
  bool counted_ram = false, counted_spill = false;  // in the parent's *_kids
  // The record on SSD: what it says, and whether it must be written again without a dirty page.
  bool record_written = false;
  bool record_wanted = false;
  uint64_t record_sequence = 0;
  EndSet record_ends;

  EndSet ends;
  uint64_t subtree_ends = 0;  // own ends and those of all descendants
  uint64_t path =
      0;  // over every token from the root on, never cut: tells blocks of one hash apart
  Children children;

  block::SequenceView view() const { return {tokens, content}; }
  uint32_t size() const { return static_cast<uint32_t>(tokens.size()); }
  bool is_root() const { return tokens.empty(); }
};

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
uint64_t MemoryOf(const Node& node);
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
