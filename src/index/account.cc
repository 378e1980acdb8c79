// Totals, eviction order and spill order, kept true after every change of a node.
#include "index/impl.h"

namespace prefixd::index {
namespace {

void Place(Node& node, OrderPlace& place, Order* wanted) {
  if (place.order == wanted && (wanted == nullptr || place.stamp == node.stamp)) return;
  if (place.order != nullptr) place.order->erase({place.stamp, node.id, &node});
  if (wanted != nullptr) wanted->insert({node.stamp, node.id, &node});
  place = {wanted, node.stamp};
}

}  // namespace

// The node's own sums are taken out on the way in and added as they are on the way out.
PrefixIndex::Impl::Change::Change(Impl& impl, Node& node)
    : impl_(impl), node_(node), before_(TotalsOf(node)), was_in_tree_(node.in_tree) {}

PrefixIndex::Impl::Change::~Change() {
  const Totals after = TotalsOf(node_);
  for (Totals* const sums : {&impl_.totals, &node_.space->totals}) {
    *sums -= before_;
    *sums += after;
  }
  if (was_in_tree_ || node_.in_tree) impl_.Refresh(node_);
}

bool PrefixIndex::Impl::WantsSpill(const Node& node) const {
  if (!node.in_tree || node.spilling) return false;
  const bool new_ends = node.record_written && (node.ends & ~node.record_ends).any();
  return (node.dirty > 0 && !node.refused) || node.record_wanted || new_ends;
}

void PrefixIndex::Impl::Refresh(Node& node) {
  node.present = node.ram = node.dirty = node.held = node.busy = node.unverified = 0;
  for (const Page& page : node.pages) {
    if (Present(page)) ++node.present;
    if (page.extent) ++node.ram;
    if (page.state == PageState::kRam) ++node.dirty;
    if (page.holders > 0) ++node.held;
    if (Busy(page.state)) ++node.busy;
    if (page.state == PageState::kUnverified) ++node.unverified;
  }
  Node* child = &node;
  // Upwards only as long as a subtree gets its first or loses its last.
  while (true) {
    Reorder(*child);
    Node* const parent = child->parent;
    if (parent == nullptr) return;
    const bool ram = child->in_tree && (child->ram > 0 || child->ram_kids > 0);
    const bool spill = child->in_tree && (WantsSpill(*child) || child->spill_kids > 0);
    if (ram == child->counted_ram && spill == child->counted_spill) return;
    if (ram != child->counted_ram) ram ? ++parent->ram_kids : --parent->ram_kids;
    if (spill != child->counted_spill) spill ? ++parent->spill_kids : --parent->spill_kids;
    child->counted_ram = ram;
    child->counted_spill = spill;
    child = parent;
  }
}

void PrefixIndex::Impl::Reorder(Node& node) {
  if (node.is_root()) return;
  auto wanted = EvictionPolicy::Place::kNone;
  const bool free = node.in_tree && node.ram > 0 && node.ram_kids == 0 && node.held == 0 &&
                    node.pinned == 0 && node.busy == 0 && !node.spilling;
  // What a reservation builds on may leave RAM, but is not dropped under it.
  const bool clean = node.dirty == 0 || (node.refused && node.holds == 0);
  if (free && clean) wanted = EvictionPolicy::Place::kClean;
  if (free && !clean && node.holds == 0) wanted = EvictionPolicy::Place::kDirty;
  eviction->Put(node, wanted);
  if (!node.space->regular) ReorderLoose(node);
  const bool spill = node.spill_kids == 0 && WantsSpill(node);
  Place(node, node.in_spill_order, spill ? &spill_order : nullptr);
  const bool unverified = node.in_tree && node.unverified > 0;
  Place(node, node.in_unverified_order, unverified ? &unverified_order : nullptr);
}

uint64_t PrefixIndex::Impl::MemoryBytes() const {
  return totals.memory_bytes + table_bytes + ghosts.MemoryBytes() +
         freed.capacity() * sizeof(block::Extent);
}

}  // namespace prefixd::index
