// Giving up: RAM pages leaf first, whole spaces, and blocks that the index has no memory for.
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

bool AnyPage(const Page&) { return true; }

}  // namespace

// Gives up each page of the block for which `may_go` is true and that nobody needs.
Evicted PrefixIndex::Impl::GiveUpRam(Node& node, bool may_drop_dirty,
                                     const std::function<bool(const Page&)>& may_go) {
  Evicted evicted;
  if (node.pinned() > 0) return evicted;
  const Change change(*this, node);
  for (Page& page : node.pages()) {
    const bool unverified = page.state() == PageState::kUnverified;
    const bool clean = page.state() == PageState::kRamAndSsd || (unverified && OnSsd(page));
    const bool may_drop = may_drop_dirty || (!unverified && node.refused && node.holds() == 0);
    const bool droppable = may_drop && (page.state() == PageState::kRam || unverified);
    if (page.holders() > 0 || (!clean && !droppable) || !may_go(page)) continue;
    evicted.bytes += page.extent().bytes;
    ++evicted.pages;
    if (clean) {
      FreeExtent(page);
      page.set_state(PageState::kSsd);
    } else {
      ++evicted.dropped_pages;
      FreePage(page);
    }
  }
  if (evicted.pages > 0 && !AnyInRam(node)) CountGivenUp().Add(node, node.stamp);
  return evicted;
}

std::optional<Evicted> PrefixIndex::EvictOne(bool may_drop_dirty, GiveUp what) {
  const base::MutexLock lock(impl_->mutex);
  if (auto evicted = impl_->EvictWindows()) return evicted;
  Node* const node = impl_->eviction->Next(may_drop_dirty);
  if (node == nullptr) return std::nullopt;
  if (what != GiveUp::kWhatMayGo) {
    const Node* const first = impl_->eviction->Next(true);
    const bool later =
        first != node && (what == GiveUp::kInOrder ||
                          (impl_->eviction->Spares(*node) && !impl_->eviction->Spares(*first)));
    if (later) return std::nullopt;
  }
  const Evicted evicted = impl_->GiveUpRam(*node, may_drop_dirty, AnyPage);
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
    Add(impl_->GiveUpRam(*node, may_drop_dirty, AnyPage), &evicted);
    impl_->Settle(node);
  }
  return evicted;
}

Evicted PrefixIndex::EvictRange(uint64_t begin, uint64_t end, bool may_drop_dirty) {
  // What is not verified yet can be moved soon.
  const auto may_go = [&](const Page& page) {
    const block::Extent extent = page.extent();
    return page.state() != PageState::kUnverified && extent && extent.offset >= begin &&
           extent.offset < end;
  };
  std::vector<Impl::FoundBlock> touched = impl_->FindInSteps(
      [&](const Node& node) { return node.in_tree && std::ranges::any_of(node.pages(), may_go); });
  Evicted evicted;
  impl_->ForEachInSteps(touched, [&](Node& node) PREFIXD_REQUIRES(impl_->mutex) {
    if (node.in_tree) Add(impl_->GiveUpRam(node, may_drop_dirty, may_go), &evicted);
  });
  impl_->SettleDeepestFirst(&touched);
  return evicted;
}

std::vector<uint64_t> PrefixIndex::SparedBytes(uint64_t slab_bytes) const {
  std::vector<uint64_t> bytes;
  impl_->ForEachInSteps([&](const Node& node) PREFIXD_REQUIRES(impl_->mutex) {
    if (!node.in_tree || !impl_->eviction->Spares(node)) return;
    for (const Page& page : node.pages()) {
      if (!page.has_extent()) continue;
      const uint64_t slab = page.extent().offset / slab_bytes;
      if (slab >= bytes.size()) bytes.resize(slab + 1);
      bytes[slab] += page.extent().bytes;
    }
  });
  return bytes;
}

Evicted PrefixIndex::EvictPicked(const PageRef& ref, block::Extent extent) {
  const base::MutexLock lock(impl_->mutex);
  const Page* const page = impl_->Resolve(ref);
  if (page == nullptr || !page->moving() || page->extent() != extent) return {};
  const Evicted evicted = impl_->GiveUpRam(
      *ref.node, true, [&](const Page& other) { return other.extent() == extent; });
  const BlockRef block{ref.node, ref.node_id};
  impl_->SettleIfLeft({&block, 1});
  return evicted;
}

// Takes the block out of both tiers and the tree; leaves a ghost.
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
  Evicted forgotten;
  const auto may_go = [&](const Node& node) {
    const Space& space = *node.space();
    if (space.handle != handle || !node.in_tree || !node.children().empty() || node.pins > 0) {
      return false;
    }
    const bool cold_copy = !AnyInRam(node) && space.totals.ssd_pages > ssd_bytes;
    return node.stamp < before_stamp || cold_copy;
  };
  impl_->DropColdest(may_go, [&](Node& node) PREFIXD_REQUIRES(impl_->mutex) {
    Add(impl_->Forget(node), &forgotten);
    return true;
  });
  return forgotten;
}

// Returns the page bytes that it had in both tiers. Requires: no children.
uint64_t PrefixIndex::Impl::ClearBlock(Node& node) {
  uint64_t bytes = 0;
  for (const Page& page : node.pages()) {
    const uint64_t copies = (page.has_extent() ? 1u : 0u) + (OnSsd(page) ? 1u : 0u);
    bytes += copies * PageBytes(node, page);
  }
  Detach(node, false);
  return bytes;
}

uint64_t PrefixIndex::Impl::ClearTree(Space& space) {
  uint64_t bytes = 0;
  std::vector<Node*> children_last;
  std::vector<Node*> open = {&space.root};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    if (!node->is_root()) children_last.push_back(node);
    open.insert(open.end(), node->children().begin(), node->children().end());
  }
  for (auto it = children_last.rbegin(); it != children_last.rend(); ++it)
    bytes += ClearBlock(**it);
  return bytes;
}

Space* PrefixIndex::Impl::EndPlansAndPins(block::SpaceHandle handle) {
  Space* const space = FindSpace(handle);
  if (space == nullptr) return nullptr;
  for (const auto& [id, reservation] : reservations) {
    if (reservation->space != space) continue;
    reservation->space = nullptr;
    DropHolds(*reservation);
  }
  EndPinsOf(*space);
  return space;
}

// Clears most blocks in steps, the deepest first, then at once what was stored meanwhile.
uint64_t PrefixIndex::Clear(block::SpaceHandle handle) {
  {
    const base::MutexLock lock(impl_->mutex);
    if (impl_->EndPlansAndPins(handle) == nullptr) return 0;
  }
  uint64_t bytes = 0;
  std::vector<Impl::FoundBlock> blocks = impl_->FindInSteps([&](const Node& node) {
    return node.in_tree && !node.is_root() && node.space()->handle == handle;
  });
  std::ranges::sort(blocks, std::greater<>(), &Impl::FoundBlock::first_token);
  impl_->ForEachInSteps(blocks, [&](Node& node) PREFIXD_REQUIRES(impl_->mutex) {
    if (node.in_tree && node.children().empty()) bytes += impl_->ClearBlock(node);
  });
  const base::MutexLock lock(impl_->mutex);
  Space* const space = impl_->EndPlansAndPins(handle);
  if (space == nullptr) return bytes;
  bytes += impl_->ClearTree(*space);
  impl_->NoteCleared(*space);
  return bytes;
}

void PrefixIndex::Impl::DropColdest(const std::function<bool(const Node&)>& may_go,
                                    const std::function<bool(Node&)>& drop) {
  std::vector<OrderKey> found;
  ForEachInSteps([&](Node& node) {
    if (may_go(node)) found.push_back({node.stamp, node.id(), &node});
  });
  std::priority_queue<OrderKey, std::vector<OrderKey>, std::greater<>> coldest(std::greater<>(),
                                                                               std::move(found));
  constexpr int kAtOnce = 512;
  while (!coldest.empty()) {
    const base::MutexLock lock(mutex);
    for (int i = 0; i < kAtOnce && !coldest.empty(); ++i) {
      const OrderKey key = coldest.top();
      coldest.pop();
      Node* const node = nodes.Find(key.id);
      if (node == nullptr || !may_go(*node) || node->stamp != key.stamp) continue;  // used since
      Node* const parent = node->parent();
      if (!drop(*node)) return;
      Node* const leaf = Settle(parent);
      if (leaf != nullptr && may_go(*leaf)) coldest.push({leaf->stamp, leaf->id(), leaf});
    }
  }
}

void PrefixIndex::TrimMemory(uint64_t target_bytes, GiveUp what) {
  int64_t colder_than = INT64_MAX;
  {
    const base::MutexLock lock(impl_->mutex);
    if (impl_->MemoryBytes() <= target_bytes) return;
    const Node* const next = what == GiveUp::kInOrder ? impl_->eviction->Next(true) : nullptr;
    if (next != nullptr) colder_than = next->stamp;
  }
  const auto droppable = [colder_than](const Node& node) {
    return node.in_tree && node.children().empty() && !AnyInRam(node) && node.pins == 0 &&
           node.stamp < colder_than;
  };
  impl_->DropColdest(droppable, [&](Node& node) PREFIXD_REQUIRES(impl_->mutex) {
    impl_->by_serial.Shrink();
    if (impl_->MemoryBytes() <= target_bytes) return false;
    impl_->Detach(node, true);
    return true;
  });
}

PrefixIndex::Places PrefixIndex::ListPlaces() const {
  Places places;
  impl_->ForEachInSteps([&](const Node& node) {
    for (const Page& page : node.pages()) {
      if (!page.has_extent()) continue;
      if (node.in_tree) places.extents.push_back(page.extent());
      if (!node.in_tree) places.detached_bytes += PageBytes(node, page);
    }
  });
  return places;
}

}  // namespace prefixd::index
