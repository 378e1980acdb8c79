// Nodes in and out of the tree, ends, superseding, pruning.
#include <algorithm>
#include <random>
#include <utility>

#include "index/impl.h"

namespace prefixd::index {
namespace {

// Moves the ends of `from` at up to `count` tokens to `to`.
void MoveEnds(Node& from, Node& to, uint32_t count) {
  EndSet moved = from.ends();
  for (uint32_t k = count; k < moved.size(); ++k) moved.reset(k);
  if (moved.none()) return;
  from.set_ends(from.ends() & ~moved);
  to.set_ends(to.ends() | moved);
  from.subtree_ends -= static_cast<uint32_t>(moved.count());
  to.subtree_ends += static_cast<uint32_t>(moved.count());
  WriteEnds(from);
  WriteEnds(to);
}

void AddSubtreeEnds(Node* node, int64_t count) {
  for (; node != nullptr; node = node->parent()) {
    node->subtree_ends += static_cast<uint32_t>(count);
  }
}

}  // namespace

PrefixIndex::Impl::~Impl() = default;

Space* PrefixIndex::Impl::FindSpace(block::SpaceHandle handle) const {
  const auto found = spaces.find(handle);
  return found == spaces.end() ? nullptr : found->second.get();
}

bool PrefixIndex::Impl::IsEmpty(const Space& space) const {
  if (loading || space.nodes > 0 || space.leases > 0) return false;
  return std::ranges::none_of(
      reservations, [&space](const auto& entry) { return entry.second->space == &space; });
}

// Counts up from a random number, so that two lives of a cache do not draw the same serials.
uint64_t PrefixIndex::Impl::NewSerial() {
  if (next_serial == 0) {
    std::random_device random;
    next_serial = uint64_t{random()} << 32 | random();
  }
  do {
    ++next_serial;
  } while (next_serial == 0 || FindSerial(next_serial) != nullptr);
  ages.NoteSerial(next_serial);
  return next_serial;
}

Node* PrefixIndex::Impl::InsertChild(Node& parent, const block::SequenceView& tokens,
                                     const block::BlockHash& hash, uint64_t serial, size_t pages) {
  Node* const node = nodes.Add(parent);
  ++node->space()->nodes;
  node->hash = hash;
  const bool may_be_parent = tokens.tokens.size() == parent.space()->shape.block_tokens;
  if (serial == 0 && may_be_parent) serial = NewSerial();
  node->SetTokens(parent.first_token() + parent.size(), tokens, may_be_parent ? serial : 0,
                  static_cast<uint32_t>(pages));
  for (Totals* const sums : {&totals, &node->space()->totals}) {
    sums->memory_bytes += node->MemoryBytes();
  }
  const Change change(*this, *node);
  node->in_tree = true;
  node->stamp = NewStamp();
  children_bytes -= parent.children().MemoryBytes();
  const auto it = parent.children().insert(node);
  children_bytes += parent.children().MemoryBytes();
  if (const auto next = std::next(it); next != parent.children().end()) {
    // The first in token order has the ends that both share, and that is this block.
    const Change of_next(*this, **next);
    MoveEnds(**next, *node, block::CommonPrefix((*next)->view(), node->view()));
  }
  if (node->size() == node->space()->shape.block_tokens) by_serial.Add(*node);
  node->was_ghost = ghosts.Contains(node->hash);
  ghosts.Remove(node->hash);
  LookAgain(&parent);
  return node;
}

void PrefixIndex::Impl::Detach(Node& node, bool ghost) {
  {
    const Change change(*this, node);
    Node& parent = *node.parent();
    const auto it = parent.children().find(&node);
    if (const auto next = std::next(it); next != parent.children().end()) {
      const Change of_next(*this, **next);
      MoveEnds(node, **next, block::CommonPrefix((*next)->view(), node.view()));
    }
    AddSubtreeEnds(&parent, -static_cast<int64_t>(node.subtree_ends));
    children_bytes -= parent.children().MemoryBytes();
    parent.children().erase(&node);
    children_bytes += parent.children().MemoryBytes();
    by_serial.Remove(node);
    if (HasSnapshots(node)) node.rare().parent_hash = parent.hash;
    node.in_tree = false;
  }
  if (ghost) ghosts.Add(node.hash);
  LookAgain(node.parent());
  node.set_parent(nullptr);
  Settle(&node);
}

void PrefixIndex::Impl::SupersedePrefixes(Node& node) {
  const Children& siblings = node.parent()->children();
  uint32_t length = node.size();
  // In token order only shorter prefixes, and strangers that share less, come before a prefix of
  // `node`. So each step shortens what is left to look for.
  while (length > 0) {
    const block::SequenceView head = Head(node.view(), length);
    auto it = siblings.upper_bound(head);
    if (it == siblings.begin()) return;
    Node& below = **std::prev(it);
    const uint32_t shared = block::CommonPrefix(below.view(), node.view());
    if (&below != &node && shared == below.size()) {
      length = shared - 1;
      if (Covers(node, below)) TakePlace(node, below);
    } else {
      length = std::min(shared, length - 1);
    }
  }
}

// While a snapshot of `shorter` is held or read or written it cannot move, and `shorter` stays.
bool PrefixIndex::Impl::TakePlace(Node& node, Node& shorter) {
  if (HasSnapshots(shorter)) {
    if (!SnapshotsMayMove(shorter)) return false;
    MoveSnapshots(shorter, node);
    if (dropping) DropCopies(node, dropping);
  }
  MovePins(shorter, node);
  Detach(shorter, false);
  return true;
}

void PrefixIndex::Impl::MoveSnapshots(Node& from, Node& to) {
  const Change of_from(*this, from);
  const Change of_to(*this, to);
  for (Page& page : from.pages()) {
    if (!Present(page) || !from.space()->shape.IsState(page.group())) continue;
    Page& slot = SlotFor(to, page.group(), page.rung());
    if (Present(slot) || slot.holders() > 0) continue;  // the snapshot goes with its block
    if (OnSsd(page)) to.record_wanted = true;           // the record of `to` does not name it yet
    slot.Take(page);
    if (slot.moving()) slot.Use().moving = false;
  }
  WriteEnds(to);
}

void PrefixIndex::Impl::Merge(Node& node) {
  if (!node.in_tree || node.size() == node.space()->shape.block_tokens || !HasSnapshots(node))
    return;
  const Children& siblings = node.parent()->children();
  for (auto it = std::next(siblings.find(&node)); it != siblings.end(); ++it) {
    if (block::CommonPrefix((*it)->view(), node.view()) < node.size()) return;
    if (Covers(**it, node) && TakePlace(**it, node)) return;
  }
}

void PrefixIndex::Impl::SetEnd(Node& first, uint32_t count) {
  if (first.ends().test(count - 1)) return;
  const Change change(*this, first);
  first.set_ends(first.ends().set(count - 1));
  WriteEnds(first);
  AddSubtreeEnds(&first, 1);
}

void PrefixIndex::Impl::FreeExtent(Page& page) {
  if (page.has_extent()) Free(page.extent());
  page.DropExtent();
}

void PrefixIndex::Impl::FreePage(Page& page) {
  FreeExtent(page);
  page.set_ssd_sequence(0);
  page.set_state(PageState::kGone);
}

Node* PrefixIndex::Impl::Settle(Node* node) {
  while (!node->is_root()) {
    {
      const Change change(*this, *node);
      for (Page& page : node->pages()) {
        const bool used =
            page.state() == PageState::kSpilling || page.state() == PageState::kPromoting;
        if (!node->in_tree && page.holders() == 0 && !used) FreePage(page);
      }
      node->EraseGone();
    }
    if (!node->in_tree) {
      if (node->pins > 0) return nullptr;
      for (Totals* const sums : {&totals, &node->space()->totals}) {
        sums->memory_bytes -= node->MemoryBytes();
      }
      --node->space()->nodes;
      nodes.Remove(node);
      return nullptr;
    }
    if (!node->pages().empty() || node->pins > 0 || !node->children().empty() || loading)
      return node;
    Node* const parent = node->parent();
    Detach(*node, true);  // deletes the node, as nobody holds it
    node = parent;
  }
  return nullptr;
}

void PrefixIndex::Impl::SettleIfLeft(std::span<const BlockRef> blocks) {
  for (const BlockRef& block : blocks) {
    if (nodes.Find(block.node_id) != nullptr) Settle(block.node);
  }
}

void PrefixIndex::Impl::SettleDeepestFirst(std::vector<FoundBlock>* blocks) {
  std::ranges::sort(*blocks, std::greater<>(), &FoundBlock::first_token);
  ForEachInSteps(*blocks, [&](Node& node) PREFIXD_REQUIRES(mutex) { Settle(&node); });
}

Page* PrefixIndex::Impl::Resolve(const PageRef& ref) {
  if (ref.node == nullptr || nodes.Find(ref.node_id) != ref.node) return nullptr;
  return FindPage(*ref.node, ref.group, ref.rung);
}

void PrefixIndex::Impl::StampPath(Node* leaf) {
  ages.NoteStamp(next_stamp);
  // Leaf first, so that in an order by stamp a prefix outlives what follows it.
  for (Node* node = leaf; node != nullptr && !node->is_root(); node = node->parent()) {
    StampBlock(*node, next_stamp++);
  }
}

void PrefixIndex::Impl::StampBlock(Node& node, int64_t stamp) {
  const bool ordered = !InNoOrder(node);
  SetStamp(node, stamp);
  if (ordered) Reorder(node);  // a hold puts no block into an order
}

}  // namespace prefixd::index
