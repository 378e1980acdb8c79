#include "index/stored_state.h"

#include "index/space.h"

namespace prefixd::index {
namespace {

// Sets of groups, a bit each.
struct Kinds {
  uint64_t full = 0, sliding = 0, state = 0;
};

Kinds KindsOf(const SpaceShape& shape) {
  Kinds kinds;
  for (uint32_t group = 0; group < shape.rungs.size(); ++group) {
    const uint64_t bit = uint64_t{1} << group;
    switch (shape.RuleOf(group).kind) {
      case block::LayerKind::kFull:
        kinds.full |= bit;
        break;
      case block::LayerKind::kSliding:
        kinds.sliding |= bit;
        break;
      case block::LayerKind::kState:
        kinds.state |= bit;
        break;
    }
  }
  return kinds;
}

// Groups that have a page in some rung.
struct Places {
  uint64_t ram = 0, ssd = 0;
  uint64_t any() const { return ram | ssd; }
};

Places PlacesOf(const Node& node) {
  Places places;
  for (const Page& page : node.pages()) {
    if (!Present(page)) continue;
    const uint64_t bit = uint64_t{1} << page.group();
    if (page.has_extent()) places.ram |= bit;
    if (OnSsd(page)) places.ssd |= bit;
  }
  return places;
}

// Offsets at which every state group has a snapshot.
std::bitset<128> SnapshotsIn(const Node& node, uint64_t groups) {
  std::bitset<128> all;
  bool first = true;
  for (uint32_t group = 0; group < block::kMaxGroups; ++group) {
    if ((groups >> group & 1) == 0) continue;
    std::bitset<128> own;
    for (const Page& page : node.pages()) {
      const bool there = Present(page) && (page.has_extent() || OnSsd(page));
      if (there && page.group() == group && page.rung() >= 1) own.set(page.rung() - 1u);
    }
    all = first ? own : all & own;
    first = false;
  }
  return all;
}

}  // namespace

block::StoredState StateOf(const Node& node) {
  block::StoredState state;
  if (!node.in_tree || node.is_root()) return state;
  const Kinds kinds = KindsOf(node.space()->shape);
  const Places places = PlacesOf(node);
  if (kinds.state != 0) state.snapshots = SnapshotsIn(node, kinds.state);
  state.windows = places.any() & kinds.sliding;
  // Without full groups every block matters: others are found through it.
  const uint64_t needed = kinds.full != 0 ? kinds.full : places.any();
  state.stored = (places.any() & needed) == needed;
  if (!state.stored) return {};
  if (needed == 0) return state;
  state.tiers.ram = (places.ram & needed) == needed;
  state.tiers.ssd = (places.ssd & needed) == needed;
  state.tiers.mixed = !state.tiers.ram && !state.tiers.ssd;
  return state;
}

}  // namespace prefixd::index
