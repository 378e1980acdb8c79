#include "index/snapshots.h"

#include <algorithm>
#include <ranges>
#include <set>

#include "base/steps.h"
#include "index/node_pool.h"

namespace prefixd::index {
namespace {

// Returns whether every selected state group has a snapshot after the first `offset` tokens of
// `block`.
bool HasAll(const Node& parent, const block::SequenceView& block, uint32_t offset,
            const Usable& usable) {
  ByShared siblings(parent, block);
  while (const auto sibling = siblings.Next()) {
    if (sibling->shared < offset) return false;
    const bool all = std::ranges::all_of(usable.groups, [&](const Usable::Group& group) {
      if (!group.state()) return true;
      const Page* const page = FindPage(*sibling->node, group.group, offset);
      return page != nullptr && Present(*page);
    });
    if (all) return true;
  }
  return false;
}

class Wanted {
 public:
  Wanted(const Walk& walk, const Reservation& reservation)
      : walk_(walk), reservation_(reservation), size_(reservation.view().tokens.size()) {}

  // Adds a position unless it has a snapshot or is out of range. Returns false if there are `most`.
  bool Add(uint32_t position, uint32_t most) {
    if (positions_.size() >= most) return false;
    if (position > 0 && position <= size_ && !positions_.contains(position) && !IsThere(position)) {
      positions_.insert(position);
    }
    return true;
  }
  uint32_t count() const { return static_cast<uint32_t>(positions_.size()); }
  std::vector<uint32_t> List() const { return {positions_.begin(), positions_.end()}; }

 private:
  bool IsThere(uint32_t position) const {
    const uint32_t block_tokens = reservation_.space->shape.block_tokens;
    const uint32_t block = (position - 1) / block_tokens;
    if (block > walk_.path.size()) return false;
    const Node& parent = block == 0 ? reservation_.space->root : *walk_.path[block - 1];
    const uint32_t first = block * block_tokens;
    const Slice tokens(reservation_.view(), first,
                       std::min(static_cast<uint32_t>(size_), first + block_tokens));
    return HasAll(parent, tokens.view(), position - first, reservation_.usable);
  }

  const Walk& walk_;
  const Reservation& reservation_;
  const size_t size_;
  std::set<uint32_t> positions_;
};

uint32_t CountOnPath(const Walk& walk, const Usable& usable) {
  const auto state = std::ranges::find_if(usable.groups, &Usable::Group::state);
  uint32_t count = 0;
  for (const Node* const node : walk.path) {
    for (const Page& page : node->pages()) {
      if (page.group() == state->group && Present(page)) ++count;
    }
  }
  return count;
}

// Returns whether sequences part at the end of this full block.
bool Parts(const Node& node) { return node.children().size() > 1; }

}  // namespace

std::vector<uint32_t> PlanSnapshots(const Walk& walk, const Reservation& reservation,
                                    const SnapshotWish& wish) {
  if (std::ranges::none_of(reservation.usable.groups, &Usable::Group::state)) return {};
  const auto size = static_cast<uint32_t>(reservation.tokens.size());
  const uint32_t block_tokens = reservation.space->shape.block_tokens;
  Wanted wanted(walk, reservation);
  // One token before an end, because an exact repeat has to compute its last token.
  if (size > 1) wanted.Add(size - 1, block::kMaxSnapshots);
  for (const uint32_t end : std::views::reverse(wish.turn_ends)) {
    base::CountSteps();
    if (end > 1 && end <= size) wanted.Add(end - 1, block::kMaxSnapshots);
  }
  if (walk.matched() < size && (walk.shared > 0 || !walk.last->children().empty())) {
    wanted.Add(walk.matched(), block::kMaxSnapshots);
  }
  for (size_t i = walk.path.size(); i-- > 0;) {
    if (!Parts(*walk.path[i])) continue;
    const auto border = static_cast<uint32_t>(i + 1) * block_tokens;
    if (!wanted.Add(border, block::kMaxSnapshots)) break;
  }
  const uint32_t there = CountOnPath(walk, reservation.usable) + wanted.count();
  const uint32_t most = std::min(wish.max_snapshots, block::kMaxSnapshots);
  const uint32_t room = most > there ? most - there : 0;
  if (room == 0) return wanted.List();
  uint32_t step = block_tokens;
  while (size / step > room) step *= 2;
  for (uint32_t position = size / step * step; position > 0; position -= step) {
    if (!wanted.Add(position, std::min(wanted.count() + 1, block::kMaxSnapshots))) break;
  }
  return wanted.List();
}

std::vector<SnapshotPlace> SnapshotsOf(Node& leaf) {
  std::vector<SnapshotPlace> places;
  for (Node* node = &leaf; !node->is_root(); node = node->parent()) {
    std::set<uint32_t, std::greater<>> offsets;
    for (const Page& page : node->pages()) {
      if (Present(page) && node->space()->shape.IsState(page.group())) offsets.insert(page.rung());
    }
    for (const uint32_t offset : offsets) places.push_back({node, offset});
  }
  std::ranges::reverse(places);
  return places;
}

size_t LeastMissed(const std::vector<SnapshotPlace>& places) {
  const auto is_kept = [](const SnapshotPlace& place) {
    const Node& node = *place.node;
    const bool before_end = place.offset < node.ends().size() && node.ends().test(place.offset);
    const bool at_border =
        place.offset == node.size() && std::ranges::any_of(node.children(), [](const Node* child) {
          return child->ends().test(0);
        });
    return before_end || at_border || (place.offset == node.size() && Parts(node));
  };
  size_t least = 0;
  uint32_t closest = ~uint32_t{0};
  bool least_kept = true;
  for (size_t i = 0; i + 1 < places.size(); ++i) {
    const uint32_t gap = places[i].position() - (i == 0 ? 0 : places[i - 1].position());
    const bool kept = is_kept(places[i]);
    if (kept && !least_kept) continue;
    if (gap >= closest && kept == least_kept) continue;
    least = i;
    closest = gap;
    least_kept = kept;
  }
  return least;
}

}  // namespace prefixd::index
