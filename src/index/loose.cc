// Pages given up without their block: sliding pages that no restorable point can need, snapshots.
#include <algorithm>

#include "base/first_bit.h"
#include "index/impl.h"
#include "index/snapshots.h"

namespace prefixd::index {
namespace {

constexpr int kLooks = 64;

bool IsLoose(const Node& node, const Page& page) {
  const bool settled = page.state() == PageState::kRam || page.state() == PageState::kRamAndSsd;
  return settled && page.holders() == 0 && node.pinned() == 0;
}

bool HasLoose(const Node& node, block::LayerKind kind) {
  return node.in_tree && std::ranges::any_of(node.pages(), [&](const Page& page) {
           return IsLoose(node, page) && node.space()->shape.RuleOf(page.group()).kind == kind;
         });
}

// Returns whether the block holds sinks or some restorable point's window reaches it. Points are
// ends, leaves, and blocks where sequences part. The search follows the block's chain to the first
// point, at most as far as the window.
bool IsNeeded(const Node& block, const GroupRule& rule) {
  if (block.first_token() < rule.sink_tokens) return true;
  const uint64_t reach =
      uint64_t{block.first_token()} + block.size() + rule.window;  // not included
  for (const Node* node = &block; node->first_token() + 1 < reach;
       node = *node->children().begin()) {
    if (node->ends().any()) {
      const auto first = static_cast<uint32_t>(base::FirstBit(node->ends()));
      if (node->first_token() + first + 1 < reach) return true;
    }
    if (node->children().size() != 1) return node->first_token() + node->size() < reach;
  }
  return false;
}

}  // namespace

void PrefixIndex::Impl::ReorderLoose(Node& node) {
  windows.Put(node, !node.windows_needed && HasLoose(node, block::LayerKind::kSliding));
  snapshots.Put(node, HasLoose(node, block::LayerKind::kState));
}

void PrefixIndex::Impl::LookAgain(Node* node) {
  const Space& space = *node->space();
  if (space.longest_window == 0) return;
  const uint32_t from = node->first_token();
  for (; !node->is_root(); node = node->parent()) {
    if (node->windows_needed) {
      node->windows_needed = false;
      ReorderLoose(*node);
    }
    if (from - node->first_token() > space.longest_window + space.shape.block_tokens) return;
  }
}

std::optional<Evicted> PrefixIndex::Impl::EvictWindows() {
  const auto any = [](const Node&) { return true; };
  while (Node* const node = windows.Next(any, kLooks)) {
    Evicted evicted;
    {
      const Change change(*this, *node);
      for (Page& page : node->pages()) {
        const GroupRule rule = node->space()->shape.RuleOf(page.group());
        if (rule.kind != block::LayerKind::kSliding || !IsLoose(*node, page)) continue;
        if (IsNeeded(*node, rule)) {
          node->windows_needed = true;
          continue;
        }
        evicted.bytes += page.extent().bytes;
        ++evicted.pages;
        // It is not written to SSD first: nothing could ask for it there either.
        GiveUp(page, evicted);
      }
    }
    Settle(node);
    if (evicted.pages > 0) return evicted;
  }
  return std::nullopt;
}

void PrefixIndex::Impl::GiveUp(Page& page, Evicted& evicted) {
  if (page.state() == PageState::kRamAndSsd) {
    FreeExtent(page);
    page.set_state(PageState::kSsd);
  } else {
    ++evicted.dropped_pages;
    FreePage(page);
  }
}

bool PrefixIndex::Impl::EvictSnapshots(bool may_drop_dirty) {
  const auto may_go = [&](const Node& node, const Page& page) {
    const bool clean = page.state() == PageState::kRamAndSsd;
    const bool held = node.holds() > 0;
    return node.space()->shape.IsState(page.group()) && IsLoose(node, page) &&
           (clean || (may_drop_dirty && !held));
  };
  Node* const node = snapshots.Next(
      [&](const Node& candidate) {
        return std::ranges::any_of(candidate.pages(),
                                   [&](const Page& page) { return may_go(candidate, page); });
      },
      kLooks);
  if (node == nullptr) return false;
  Evicted evicted;
  {
    const Change change(*this, *node);
    for (Page& page : node->pages()) {
      if (!may_go(*node, page)) continue;
      ++evicted.pages;
      GiveUp(page, evicted);
    }
  }
  evicted_snapshots += evicted.pages;
  Settle(node);
  return true;
}

bool PrefixIndex::Impl::MakeSnapshotRoom(uint64_t bytes) {
  if (bytes > limits.snapshot_bytes) return false;
  while (totals.snapshot_extents > limits.snapshot_bytes - bytes) {
    if (!EvictSnapshots(/*may_drop_dirty=*/false) && !EvictSnapshots(/*may_drop_dirty=*/true)) {
      return false;
    }
  }
  return true;
}

void PrefixIndex::Impl::TrimChain(Node& leaf) {
  std::vector<SnapshotPlace> places = SnapshotsOf(leaf);
  while (places.size() > block::kMaxSnapshots) {
    const size_t least = LeastMissed(places);
    const SnapshotPlace place = places[least];
    places.erase(places.begin() + static_cast<std::ptrdiff_t>(least));
    {
      const Change change(*this, *place.node);
      for (Page& page : place.node->pages()) {
        const bool there =
            page.rung() == place.offset && place.node->space()->shape.IsState(page.group());
        const bool idle = page.holders() == 0 && !Busy(page.state()) && place.node->pinned() == 0;
        if (there && idle && Present(page)) FreePage(page);
      }
    }
    Settle(place.node);
  }
}

}  // namespace prefixd::index
