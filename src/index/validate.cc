// Validate: recomputes every sum, order and link from the nodes.
#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "index/impl.h"

namespace prefixd::index {
namespace {

// How many leases, or groups of leases that share a path, hold a page, and the bits of their slots.
struct Holders {
  uint32_t count = 0;
  uint64_t slots = 0;
};
using HolderMap = absl::flat_hash_map<std::pair<const Node*, uint32_t>, Holders>;

absl::Status Broken(const Node& node, const std::string& what) {
  return absl::InternalError(absl::StrCat("index: node ", node.id(), " at token ",
                                          node.first_token(), " with ", node.size(),
                                          " tokens: ", what));
}

absl::Status CheckChildren(const Node& node) {
  uint32_t ram = 0, spill = 0;
  uint64_t ends = node.ends().count();
  const Node* before = nullptr;
  for (const Node* const child : node.children()) {
    if (child->parent() != &node || !child->in_tree)
      return Broken(*child, "not its parent's child");
    if (child->first_token() != node.first_token() + node.size()) return Broken(*child, "place");
    if (before != nullptr) {
      if (block::Compare(before->view(), child->view()) >= 0) return Broken(*child, "order");
      const uint32_t shared = block::CommonPrefix(before->view(), child->view());
      for (uint32_t k = 0; k < shared; ++k) {
        if (child->ends().test(k)) return Broken(*child, "an end that stands at its first sibling");
      }
    }
    ram += child->counted_ram ? 1 : 0;
    spill += child->counted_spill ? 1 : 0;
    if (child->counted_ram != (AnyInRam(*child) || child->children().ram() > 0))
      return Broken(*child, "ram");
    ends += child->subtree_ends;
    before = child;
  }
  if (node.children().empty() != (node.children().likely() == nullptr) ||
      (node.children().likely() != nullptr && node.children().likely()->parent() != &node)) {
    return Broken(node, "likely child");
  }
  if (ram != node.children().ram()) return Broken(node, "children with RAM pages");
  if (spill != node.children().spill()) return Broken(node, "children that want a spill");
  if (ends != node.subtree_ends) return Broken(node, "ends of the subtree");
  return absl::OkStatus();
}

absl::Status CheckPages(const Node& node) {
  const Page* before = nullptr;
  for (const Page& page : node.pages()) {
    if (before != nullptr &&
        std::pair(before->group(), before->rung()) >= std::pair(page.group(), page.rung())) {
      return Broken(node, "pages out of order");
    }
    before = &page;
    if (!node.space()->shape.Has(page.group(), page.rung(), node.size()))
      return Broken(node, "rung");
    const bool either = page.state() == PageState::kPromoting;  // reads from SSD or checks in place
    const bool in_ram = InRam(page.state()) || page.state() == PageState::kUnverified;
    if (page.has_extent() != in_ram && !either) return Broken(node, "extent");
    const bool copy = page.state() == PageState::kRamAndSsd || page.state() == PageState::kSsd;
    const bool again = page.state() == PageState::kSpilling;  // may have a copy that is leaving
    if (OnSsd(page) != copy && !either && !again && page.state() != PageState::kUnverified) {
      return Broken(node, "SSD sequence");
    }
    if (page.state() == PageState::kSpilling && !node.spilling)
      return Broken(node, "spilling page");
    if (page.state() == PageState::kGone && page.holders() == 0) return Broken(node, "empty slot");
  }
  return absl::OkStatus();
}

// Checks the marks of the node's pages against the slots of the leases that hold them.
absl::Status CheckMarks(const Node& node, const HolderMap& holders) {
  for (const Page& page : node.pages()) {
    const auto held = holders.find({&node, page.group() << 16 | page.rung()});
    const Holders by = held == holders.end() ? Holders() : held->second;
    if (by.count != page.holders()) return Broken(node, "holders");
    if ((by.slots & ~page.slots()) != 0) return Broken(node, "a holder without its bit");
    const bool adopted =
        page.state() == PageState::kUnverified || page.state() == PageState::kPromoting;
    if (by.count == 0 && page.slots() != 0 && !adopted)
      return Broken(node, "bits without a holder");
    if (page.marks() == nullptr) continue;
    if (!page.has_extent()) return Broken(node, "marks without an extent");
    if (page.marks()->ReadHolders() != page.slots()) return Broken(node, "holders in the marks");
    const std::array<uint64_t, 2> ends = EndsIn(node, page);
    if (page.marks()->ends[0].load() != ends[0] || page.marks()->ends[1].load() != ends[1]) {
      return Broken(node, "ends in the marks");
    }
  }
  return absl::OkStatus();
}

// `place`: where the node belongs in the order of eviction.
absl::Status CheckNode(const Node& node, EvictPlace place, const EvictionPolicy& eviction,
                       const Order& spill) {
  if (absl::Status status = CheckPages(node); !status.ok()) return status;
  if (!node.in_tree) {
    if (node.pins == 0) return Broken(node, "out of the tree and needed by nobody");
    if (node.in_evict_order != EvictPlace::kNone || node.in_spill_order ||
        !node.children().empty()) {
      return Broken(node, "out of the tree and still in an order");
    }
    return absl::OkStatus();
  }
  if (!node.children().empty() && node.size() != node.space()->shape.block_tokens)
    return Broken(node, "partial parent");
  if (node.pages().empty() && node.children().empty() && node.pins == 0 && !node.record_written) {
    return Broken(node, "empty and needed by nobody");
  }
  if (!eviction.Is(node, place)) return Broken(node, "eviction order");
  if (spill.contains({node.stamp, node.id(), const_cast<Node*>(&node)}) != node.in_spill_order) {
    return Broken(node, "spill order");
  }
  if (CountPages(node).dirty > 0 && !node.refused && !node.spilling && !node.in_spill_order &&
      node.children().spill() == 0) {
    return Broken(node, "dirty and not in the spill order");
  }
  return CheckChildren(node);
}

}  // namespace

absl::Status PrefixIndex::Impl::Validate() const {
  Totals sum;
  absl::flat_hash_map<const Space*, Totals> of_space;
  absl::flat_hash_map<const Space*, uint64_t> nodes_of, leases_of;
  absl::flat_hash_map<const Node*, uint32_t> pins;  // Node::pins, all kinds but spill and promotion
  HolderMap holders;
  size_t full = 0, loose = 0, in_orders = 0, in_spill_order = 0, in_unverified_order = 0;
  absl::flat_hash_map<const HeldPath*, uint64_t> slots_of{{&adoption, 0}};
  for (const auto& [id, lease] : leases) {
    uint64_t& slots = slots_of[lease.held.get()];
    slots |= BitOf(lease.slot);
  }
  for (const auto& [path, slots] : slots_of) {
    for (const HeldPage& held : path->pages) {
      ++pins[held.node];
      Holders& of_page = holders[{held.node, held.group << 16 | held.rung}];
      ++of_page.count;
      of_page.slots |= slots;
    }
  }
  for (const auto& [name, path] : shared_paths) {
    const std::shared_ptr<HeldPath> held = path.lock();
    if (held == nullptr || !slots_of.contains(held.get()) || held->name != name) {
      return absl::InternalError("index: the paths that leases may join");
    }
    uint64_t charge = 0;
    for (const HeldPage& page : held->pages) {
      charge += page.charge;
      if ((held->slots & ~FindPage(*page.node, page.group, page.rung)->slots()) != 0) {
        return Broken(*page.node, "a slot of a shared path without its bit");
      }
    }
    if (charge != held->charge) return absl::InternalError("index: the charge of a path");
  }
  for (const auto& [id, reservation] : reservations) {
    if (reservation->hold != nullptr) ++pins[reservation->hold];
    if (reservation->tail != nullptr) ++pins[reservation->tail];
  }
  absl::flat_hash_map<const Node*, uint32_t> pinned;
  for (const auto& [id, pin] : this->pins) {
    for (Node* const node : pin.nodes) {
      ++pins[node];
      ++pinned[node];
      if (!node->in_tree) return Broken(*node, "pinned and out of the tree");
    }
  }
  for (Node* const node : nodes) {
    if (pinned[node] != node->pinned()) return Broken(*node, "pinned");
    const uint32_t block_tokens = node->space()->shape.block_tokens;
    // While pages are adopted, those that an earlier adoption left unverified are where they were.
    const PageCounts pages = CountPages(*node);
    const bool unsettled = adopting && pages.unverified > 0;
    const EvictPlace place = unsettled ? node->in_evict_order : PlaceOf(*node, pages);
    absl::Status status = CheckNode(*node, place, *eviction, spill_order);
    if (!status.ok()) return status;
    uint32_t needed = pins[node] + (node->spilling ? 1 : 0);
    for (const Page& page : node->pages()) {
      if (page.state() == PageState::kPromoting) ++needed;
    }
    if (absl::Status marks = CheckMarks(*node, holders); !marks.ok()) return marks;
    if (needed != node->pins) return Broken(*node, "pins");
    const Totals of_node = TotalsOf(*node);
    sum += of_node;
    of_space[node->space()] += of_node;
    ++nodes_of[node->space()];
    full += node->in_tree && node->size() == block_tokens ? 1 : 0;
    in_orders += node->in_evict_order != EvictPlace::kNone ? 1 : 0;
    loose += (windows.Contains(*node) ? 1 : 0) + (snapshots.Contains(*node) ? 1 : 0);
    in_spill_order += node->in_spill_order ? 1 : 0;
    const OrderKey unverified_key{node->stamp, node->id(), node};
    in_unverified_order += unverified_order.contains(unverified_key) ? 1 : 0;
    const bool unverified =
        node->in_tree && std::ranges::any_of(node->pages(), [](const Page& page) {
          return page.state() == PageState::kUnverified;
        });
    if (unverified != node->in_unverified_order) return Broken(*node, "unverified order");
  }
  if (sum != totals) return absl::InternalError("index: totals differ from the nodes'");
  if (full != by_serial.size()) return absl::InternalError("index: full blocks by serial");
  if (in_orders != eviction->size()) return absl::InternalError("index: eviction orders");
  if (loose != windows.size() + snapshots.size()) {
    return absl::InternalError("index: orders of sliding pages and snapshots");
  }
  if (in_unverified_order != unverified_order.size()) {
    return absl::InternalError("index: unverified order");
  }
  if (in_spill_order != spill_order.size()) return absl::InternalError("index: spill order");
  for (const auto& [id, lease] : leases) ++leases_of[lease.space];
  uint64_t bytes_of_spaces = 0;
  for (const auto& [handle, space] : spaces) {
    Totals there = space->totals;
    there.memory_bytes = of_space[space.get()].memory_bytes;  // checked for all together only
    if (there != of_space[space.get()]) {
      return absl::InternalError("index: totals of a space differ from its nodes'");
    }
    if (space->nodes != nodes_of[space.get()] || space->leases != leases_of[space.get()]) {
      return absl::InternalError("index: the blocks or leases that a space counts");
    }
    bytes_of_spaces += space->memory_bytes;
    if (absl::Status status = CheckChildren(space->root); !status.ok()) return status;
  }
  if (bytes_of_spaces != spaces_bytes || spaces.size() != spaces_by_id.size()) {
    return absl::InternalError("index: the tables of spaces");
  }
  absl::flat_hash_map<block::SessionId, Session> of_session;
  for (const auto& [id, lease] : leases) {
    Session& session = of_session[lease.session];
    ++session.leases;
    for (const HeldPage& held : lease.pages()) session.leased_bytes += held.charge;
  }
  for (const auto& [id, pin] : this->pins) {
    Session& session = of_session[pin.session];
    ++session.pins;
    session.pinned_bytes += pin.charge;
  }
  if (of_session != sessions) return absl::InternalError("index: a session's leases and bytes");
  return absl::OkStatus();
}

}  // namespace prefixd::index
