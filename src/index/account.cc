// Totals, eviction order and spill order, updated after every change of a node.
#include <algorithm>

#include "index/impl.h"
#include "index/stored_state.h"

namespace prefixd::index {
namespace {

constexpr uint64_t kInOrder = 36;  // an OrderKey in a tree whose nodes are two thirds full

bool PutInto(Order& order, Node& node, bool wanted) {
  const OrderKey key{node.stamp, node.id(), &node};
  if (wanted) {
    order.insert(key);
  } else {
    order.erase(key);
  }
  return wanted;
}

}  // namespace

// The constructor notes the node's sums; the destructor replaces them in the totals.
PrefixIndex::Impl::Change::Change(Impl& impl, Node& node)
    : impl_(impl),
      node_(node),
      before_(TotalsOf(node)),
      was_in_tree_(node.in_tree),
      state_before_(impl.events.recording() ? StateOf(node) : block::StoredState()) {}

PrefixIndex::Impl::Change::~Change() {
  for (Page& page : node_.pages()) page.Fold();
  node_.FoldRare();
  const Totals after = TotalsOf(node_);
  for (Totals* const sums : {&impl_.totals, &node_.space()->totals}) {
    *sums -= before_;
    *sums += after;
  }
  if (was_in_tree_ || node_.in_tree) impl_.Refresh(node_);
  if (impl_.events.recording()) impl_.NoteChange(node_, state_before_);
}

bool PrefixIndex::Impl::WantsSpill(const Node& node) const {
  if (!node.in_tree || node.spilling) return false;
  const bool new_ends = node.record_written && (node.ends() & ~node.record_ends()).any();
  const auto is_dirty = [](const Page& page) { return page.state() == PageState::kRam; };
  return (!node.refused && std::ranges::any_of(node.pages(), is_dirty)) || node.record_wanted ||
         new_ends;
}

void PrefixIndex::Impl::Refresh(Node& node) {
  Node* child = &node;
  // Goes upwards only while a subtree gets its first such block or loses its last.
  while (true) {
    Reorder(*child);
    Node* const parent = child->parent();
    if (parent == nullptr) return;
    const bool ram = child->in_tree && (AnyInRam(*child) || child->children().ram() > 0);
    const bool spill = child->in_tree && (WantsSpill(*child) || child->children().spill() > 0);
    if (ram == child->counted_ram && spill == child->counted_spill) return;
    if (ram != child->counted_ram) parent->children().CountRam(ram);
    if (spill != child->counted_spill) parent->children().CountSpill(spill);
    child->counted_ram = ram;
    child->counted_spill = spill;
    child = parent;
  }
}

EvictPlace PrefixIndex::Impl::PlaceOf(const Node& node, const PageCounts& pages) const {
  // While pages are adopted, children may come, and no block has its last use.
  const uint32_t busy = adopting ? pages.busy : pages.busy - pages.unverified;
  const bool free = node.in_tree && pages.ram > 0 && node.children().ram() == 0 &&
                    pages.held == 0 && node.pinned() == 0 && busy == 0 && !node.spilling;
  if (!free) return EvictPlace::kNone;
  // A block that a reservation builds on may leave RAM for SSD, but its dirty pages are not
  // dropped.
  const bool needed = node.holds() > 0;
  const bool clean = pages.unverified_dirty == 0 && (pages.dirty == 0 || (node.refused && !needed));
  if (clean) return EvictPlace::kClean;
  return needed ? EvictPlace::kNone : EvictPlace::kDirty;
}

void PrefixIndex::Impl::Reorder(Node& node) {
  if (node.is_root()) return;
  const PageCounts pages = CountPages(node);
  eviction->Put(node, PlaceOf(node, pages));
  if (!node.space()->regular) ReorderLoose(node);
  const bool spill = node.children().spill() == 0 && WantsSpill(node);
  if (spill != node.in_spill_order) node.in_spill_order = PutInto(spill_order, node, spill);
  const bool unverified = node.in_tree && pages.unverified > 0;
  if (unverified != node.in_unverified_order) {
    node.in_unverified_order = PutInto(unverified_order, node, unverified);
  }
}

bool PrefixIndex::Impl::InNoOrder(const Node& node) {
  return node.space()->regular && node.in_evict_order == EvictPlace::kNone &&
         !node.in_spill_order && !node.in_unverified_order;
}

void PrefixIndex::Impl::SetStamp(Node& node, int64_t stamp) {
  eviction->Put(node, EvictPlace::kNone);
  if (node.in_spill_order) node.in_spill_order = PutInto(spill_order, node, false);
  if (node.in_unverified_order) {
    node.in_unverified_order = PutInto(unverified_order, node, false);
  }
  node.stamp = stamp;
}

uint64_t PrefixIndex::Impl::MemoryBytes() const {
  const uint64_t in_orders = eviction->size() + spill_order.size() + unverified_order.size() +
                             2 * (windows.size() + snapshots.size());
  return totals.memory_bytes + spaces_bytes + nodes.MemoryBytes() + by_serial.MemoryBytes() +
         children_bytes + in_orders * kInOrder + table_bytes + ghosts.MemoryBytes() +
         freed.capacity() * sizeof(block::Extent);
}

void PrefixIndex::Impl::NoteMemory() {
  memory_seen.store(MemoryBytes(), std::memory_order_relaxed);
  tables_seen.store(table_bytes, std::memory_order_relaxed);
}

}  // namespace prefixd::index
