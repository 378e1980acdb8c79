#include "index/eviction_order.h"

#include <cstdint>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_set.h"

#include "index/space.h"

namespace prefixd::index {
namespace {

// One order by stamp for each space that has blocks in it, and an order of spaces by their coldest
// block: there may be very many spaces, and few of them have limits.
class LeafLru final : public EvictionPolicy {
 public:
  void Put(Node& node, Place place) override {
    if (place == node.in_evict_order) return;
    const Space* const space = node.space();
    Orders& orders = orders_[space];
    const OrderKey key{node.stamp, node.id(), &node};
    if (node.in_evict_order != Place::kNone) size_ -= orders.At(node.in_evict_order).erase(key);
    if (place != Place::kNone) size_ += orders.At(place).insert(key).second ? 1 : 0;
    node.in_evict_order = place;
    Rank(space, orders, false);
    Rank(space, orders, true);
    if (orders.clean.empty() && orders.dirty.empty()) orders_.erase(space);
  }

  Node* Next(bool may_drop_dirty) const override {
    Node* coldest = nullptr;
    for (const Space* const space : with_ceiling_) {
      if (space->totals.ram_extents <= space->limits.ram_ceiling_bytes || IsBelowFloor(*space)) {
        continue;
      }
      Node* const node = NextOf(*space, may_drop_dirty);
      if (node != nullptr && (coldest == nullptr || node->stamp < coldest->stamp)) coldest = node;
    }
    if (coldest != nullptr) return coldest;
    for (const auto& [stamp, space] : coldest_[may_drop_dirty]) {
      if (!IsBelowFloor(*space)) return NextOf(*space, may_drop_dirty);
    }
    return nullptr;
  }

  Node* NextOf(const Space& space, bool may_drop_dirty) const override {
    const auto found = orders_.find(&space);
    return found == orders_.end() ? nullptr : Coldest(found->second, may_drop_dirty);
  }

  void LimitsChanged(const Space& space) override {
    if (space.limits.ram_ceiling_bytes > 0) {
      with_ceiling_.insert(&space);
    } else {
      with_ceiling_.erase(&space);
    }
  }

  bool Is(const Node& node, Place place) const override {
    const auto found = orders_.find(node.space());
    if (found == orders_.end()) return place == Place::kNone;
    const OrderKey key{node.stamp, node.id(), const_cast<Node*>(&node)};
    return found->second.clean.contains(key) == (place == Place::kClean) &&
           found->second.dirty.contains(key) == (place == Place::kDirty);
  }

  size_t size() const override { return size_; }

 private:
  static constexpr int64_t kNone = INT64_MAX;
  struct Orders {
    Order clean, dirty;
    int64_t ranked[2] = {kNone, kNone};  // the space's stamps in coldest_
    Order& At(Place place) { return place == Place::kClean ? clean : dirty; }
  };

  static bool IsBelowFloor(const Space& space) {
    return space.totals.ram_extents <= space.limits.ram_floor_bytes;
  }

  void Rank(const Space* space, Orders& orders, bool dirty_too) {
    const Node* const node = Coldest(orders, dirty_too);
    const int64_t stamp = node == nullptr ? kNone : node->stamp;
    int64_t& ranked = orders.ranked[dirty_too];
    if (stamp == ranked) return;
    if (ranked != kNone) coldest_[dirty_too].erase({ranked, space});
    if (stamp != kNone) coldest_[dirty_too].insert({stamp, space});
    ranked = stamp;
  }

  static Node* Coldest(const Orders& orders, bool may_drop_dirty) {
    const bool dirty = may_drop_dirty && !orders.dirty.empty();
    if (orders.clean.empty()) return dirty ? orders.dirty.begin()->node : nullptr;
    Node* const clean = orders.clean.begin()->node;
    if (!dirty) return clean;
    Node* const other = orders.dirty.begin()->node;
    return clean->stamp < other->stamp ? clean : other;
  }

  absl::flat_hash_map<const Space*, Orders> orders_;
  // Spaces by the stamp of their coldest block: [0] of clean blocks, [1] of all.
  absl::btree_set<std::pair<int64_t, const Space*>> coldest_[2];
  absl::flat_hash_set<const Space*> with_ceiling_;
  size_t size_ = 0;
};

}  // namespace

void LooseOrder::Put(Node& node, bool wanted) {
  const auto there = stamps_.find(&node);
  if (there != stamps_.end()) {
    if (wanted && there->second == node.stamp) return;
    order_.erase({there->second, node.id(), &node});
    stamps_.erase(there);
  }
  if (!wanted) return;
  order_.insert({node.stamp, node.id(), &node});
  stamps_.emplace(&node, node.stamp);
}

Node* LooseOrder::Next(const std::function<bool(const Node&)>& may_go, int looks) const {
  for (auto it = order_.begin(); it != order_.end() && looks > 0; ++it, --looks) {
    const Space& space = *it->node->space();
    if (space.totals.ram_extents > space.limits.ram_floor_bytes && may_go(*it->node)) {
      return it->node;
    }
  }
  return nullptr;
}

std::unique_ptr<EvictionPolicy> MakeLeafLru() { return std::make_unique<LeafLru>(); }

}  // namespace prefixd::index
