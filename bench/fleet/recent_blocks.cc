#include "bench/fleet/recent_blocks.h"

namespace prefixd::bench {

void RecentBlocks::Link(uint32_t place) {
  Node& node = nodes_[place];
  node.newer = kNone;
  node.older = newest_;
  if (newest_ != kNone) nodes_[newest_].newer = place;
  newest_ = place;
  if (oldest_ == kNone) oldest_ = place;
}

void RecentBlocks::Unlink(uint32_t place) {
  const Node& node = nodes_[place];
  (node.newer == kNone ? newest_ : nodes_[node.newer].older) = node.older;
  (node.older == kNone ? oldest_ : nodes_[node.older].newer) = node.newer;
}

void RecentBlocks::Renew(uint32_t place, int64_t now_us) {
  nodes_[place].at_us = now_us;
  nodes_[place].use = uses_;
  if (newest_ == place) return;
  Unlink(place);
  Link(place);
}

uint32_t RecentBlocks::Insert(FleetBlock block) {
  uint32_t place = static_cast<uint32_t>(nodes_.size());
  if (free_.empty()) {
    nodes_.emplace_back();
  } else {
    place = free_.back();
    free_.pop_back();
  }
  nodes_[place].block = block;
  places_.emplace(block, place);
  Link(place);
  return place;
}

bool RecentBlocks::Touch(FleetBlock block, int64_t now_us) {
  const auto there = places_.find(block);
  if (there == places_.end()) return false;
  Renew(there->second, now_us);
  return true;
}

void RecentBlocks::Add(FleetBlock block, int64_t now_us) {
  if (capacity_ == 0 || Touch(block, now_us)) return;
  if (size() == capacity_) Forget(nodes_[oldest_].block);
  Renew(Insert(block), now_us);
}

void RecentBlocks::Forget(FleetBlock block) {
  const auto there = places_.find(block);
  if (there == places_.end()) return;
  Unlink(there->second);
  free_.push_back(there->second);
  places_.erase(there);
}

size_t RecentBlocks::Leading(std::span<const FleetBlock> path) const {
  size_t leading = 0;
  while (leading < path.size() && Contains(path[leading])) ++leading;
  return leading;
}

void RecentBlocks::Use(std::span<const FleetBlock> path) {
  ++uses_;
  std::vector<uint32_t> places;
  places.reserve(path.size());
  for (const FleetBlock block : path) {
    const auto there = places_.find(block);
    if (there == places_.end()) break;
    places.push_back(there->second);
  }
  for (auto place = places.rbegin(); place != places.rend(); ++place) Renew(*place, 0);
  while (places.size() < path.size()) {
    if (size() == capacity_) {
      // Everything that is left is of this path.
      if (capacity_ == 0 || nodes_[oldest_].use == uses_) break;
      Forget(nodes_[oldest_].block);
    }
    places.push_back(Insert(path[places.size()]));
    Renew(places.back(), 0);
  }
  for (auto place = places.rbegin(); place != places.rend(); ++place) Renew(*place, 0);
}

}  // namespace prefixd::bench
