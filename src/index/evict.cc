// Giving up: RAM pages leaf first, whole spaces, and blocks nobody can afford to remember.
#include <algorithm>
#include <queue>

#include "index/impl.h"

namespace prefixd::index {
namespace {

void Add(const Evicted& more, Evicted* evicted) {
  evicted->bytes += more.bytes;
  evicted->pages += more.pages;
  evicted->dropped_pages += more.dropped_pages;
}

}  // namespace

Evicted PrefixIndex::Impl::GiveUpRam(Node& node, bool may_drop_dirty, uint64_t begin,
                                     uint64_t end) {
  Evicted evicted;
  if (node.pinned() > 0) return evicted;
  const Change change(*this, node);
  for (Page& page : node.pages()) {
    const bool clean = page.state() == PageState::kRamAndSsd;
    const bool may_drop = may_drop_dirty || (node.refused && node.holds() == 0);
    const bool droppable = may_drop && page.state() == PageState::kRam;
    if (page.holders() > 0 || (!clean && !droppable)) continue;
    const block::Extent extent = page.extent();
    if (extent.offset < begin || extent.offset >= end) continue;
    evicted.bytes += extent.bytes;
    ++evicted.pages;
    if (clean) {
      FreeExtent(page);
      page.set_state(PageState::kSsd);
    } else {
      ++evicted.dropped_pages;
      FreePage(page);
    }
  }
  return evicted;
}

std::optional<Evicted> PrefixIndex::EvictOne(bool may_drop_dirty) {
  const base::MutexLock lock(impl_->mutex);
  if (auto evicted = impl_->EvictWindows()) return evicted;
  Node* const node = impl_->eviction->Next(may_drop_dirty);
  if (node == nullptr) return std::nullopt;
  const Evicted evicted = impl_->GiveUpRam(*node, may_drop_dirty, 0, ~uint64_t{0});
  impl_->Settle(node);
  return evicted;
}

Evicted PrefixIndex::EvictAbove(block::SpaceHandle handle, uint64_t ram_bytes,
                                bool may_drop_dirty) {
  const base::MutexLock lock(impl_->mutex);
  Evicted evicted;
  const Space* const space = impl_->FindSpace(handle);
  while (space != nullptr && space->totals.ram_extents > ram_bytes) {
    Node* const node = impl_->eviction->NextOf(*space, may_drop_dirty);
    if (node == nullptr) break;
    Add(impl_->GiveUpRam(*node, may_drop_dirty, 0, ~uint64_t{0}), &evicted);
    impl_->Settle(node);
  }
  return evicted;
}

Evicted PrefixIndex::EvictRange(uint64_t begin, uint64_t end, bool may_drop_dirty) {
  const base::MutexLock lock(impl_->mutex);
  std::vector<BlockRef> touched;
  for (Node* const node : impl_->nodes) {
    const bool inside = node->in_tree && std::ranges::any_of(node->pages(), [&](const Page& page) {
                          const block::Extent extent = page.extent();
                          return extent && extent.offset >= begin && extent.offset < end;
                        });
    if (inside) touched.push_back({node, node->id()});
  }
  Evicted evicted;
  for (const BlockRef& block : touched) {
    Add(impl_->GiveUpRam(*block.node, may_drop_dirty, begin, end), &evicted);
  }
  // Deepest first, so that settling one never deletes another before its turn.
  std::ranges::sort(touched, std::greater<>(),
                    [](const BlockRef& a) { return a.node->first_token(); });
  impl_->SettleIfLeft(touched);
  return evicted;
}

// Both tiers: as a Clear of one block.
Evicted PrefixIndex::Impl::Forget(Node& node) {
  Evicted evicted;
  for (const Page& page : node.pages()) {
    evicted.bytes += page.extent().bytes;
    evicted.pages += Present(page) ? 1 : 0;
  }
  Detach(node, true);
  return evicted;
}

Evicted PrefixIndex::ForgetUnused(block::SpaceHandle handle, int64_t before_stamp,
                                  uint64_t ssd_bytes) {
  const base::MutexLock lock(impl_->mutex);
  Evicted forgotten;
  Space* const space = impl_->FindSpace(handle);
  if (space == nullptr) return forgotten;
  const auto may_go = [&](const Node& node) {
    if (!node.in_tree || !node.children().empty() || node.pins > 0) return false;
    const bool cold_copy = !AnyInRam(node) && space->totals.ssd_pages > ssd_bytes;
    return node.stamp < before_stamp || cold_copy;
  };
  std::priority_queue<OrderKey, std::vector<OrderKey>, std::greater<>> coldest;
  for (Node* const node : impl_->nodes) {
    if (node->space() == space && may_go(*node)) coldest.push({node->stamp, node->id(), node});
  }
  while (!coldest.empty()) {
    Node* const node = coldest.top().node;
    coldest.pop();
    if (!may_go(*node)) continue;
    Node* const parent = node->parent();
    Add(impl_->Forget(*node), &forgotten);
    Node* const leaf = impl_->Settle(parent);
    if (leaf != nullptr && may_go(*leaf)) coldest.push({leaf->stamp, leaf->id(), leaf});
  }
  return forgotten;
}

uint64_t PrefixIndex::Impl::ClearTree(Space& space) {
  uint64_t bytes = 0;
  std::vector<Node*> children_last;
  std::vector<Node*> open = {&space.root};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    if (!node->is_root()) children_last.push_back(node);
    for (const Page& page : node->pages()) {
      const uint64_t copies = (page.has_extent() ? 1u : 0u) + (OnSsd(page) ? 1u : 0u);
      bytes += copies * PageBytes(*node, page);
    }
    open.insert(open.end(), node->children().begin(), node->children().end());
  }
  for (auto it = children_last.rbegin(); it != children_last.rend(); ++it) Detach(**it, false);
  return bytes;
}

uint64_t PrefixIndex::Clear(block::SpaceHandle handle) {
  const base::MutexLock lock(impl_->mutex);
  Space* const space = impl_->FindSpace(handle);
  if (space == nullptr) return 0;
  for (const auto& [id, reservation] : impl_->reservations) {
    if (reservation->space != space) continue;
    reservation->space = nullptr;
    impl_->DropHolds(*reservation);
  }
  impl_->EndPinsOf(*space);
  return impl_->ClearTree(*space);
}

void PrefixIndex::TrimMemory(uint64_t target_bytes) {
  const base::MutexLock lock(impl_->mutex);
  const auto droppable = [](const Node& node) {
    return node.in_tree && node.children().empty() && !AnyInRam(node) && node.pins == 0;
  };
  std::priority_queue<OrderKey, std::vector<OrderKey>, std::greater<>> coldest;
  if (impl_->MemoryBytes() <= target_bytes) return;
  for (Node* const node : impl_->nodes) {
    if (droppable(*node)) coldest.push({node->stamp, node->id(), node});
  }
  while (!coldest.empty() && impl_->MemoryBytes() > target_bytes) {
    Node* const node = coldest.top().node;
    coldest.pop();
    Node* const parent = node->parent();
    impl_->Detach(*node, true);
    Node* const leaf = impl_->Settle(parent);
    if (leaf != nullptr && droppable(*leaf)) coldest.push({leaf->stamp, leaf->id(), leaf});
    impl_->by_hash.Shrink();
  }
}

PrefixIndex::Places PrefixIndex::ListPlaces() const {
  const base::MutexLock lock(impl_->mutex);
  Places places;
  for (const Node* const node : impl_->nodes) {
    for (const Page& page : node->pages()) {
      if (!page.has_extent()) continue;
      if (node->in_tree) places.extents.push_back(page.extent());
      if (!node->in_tree) places.detached_bytes += PageBytes(*node, page);
    }
  }
  return places;
}

}  // namespace prefixd::index
