#include "index/eviction_order.h"

#include "index/space.h"

namespace prefixd::index {
namespace {

// An order by stamp for each space: what is coldest of all is coldest of its own.
class LeafLru final : public EvictionPolicy {
 public:
  void Put(Node& node, Place place) override {
    if (place == node.in_evict_order) return;
    Orders& orders = orders_[node.space()];
    const OrderKey key{node.stamp, node.id(), &node};
    if (node.in_evict_order != Place::kNone) size_ -= orders.At(node.in_evict_order).erase(key);
    if (place != Place::kNone) size_ += orders.At(place).insert(key).second ? 1 : 0;
    node.in_evict_order = place;
  }

  Node* Next(bool may_drop_dirty) const override {
    Node* coldest = nullptr;
    bool coldest_above = false;
    for (const auto& [space, orders] : orders_) {
      const uint64_t ram_bytes = space->totals.ram_extents;
      const uint64_t ceiling = space->limits.ram_ceiling_bytes;
      const bool above = ceiling > 0 && ram_bytes > ceiling;
      if (ram_bytes <= space->limits.ram_floor_bytes || (coldest_above && !above)) continue;
      Node* const node = Coldest(orders, may_drop_dirty);
      if (node == nullptr) continue;
      const bool first = coldest == nullptr || (above && !coldest_above);
      if (first || node->stamp < coldest->stamp) coldest = node;
      coldest_above = coldest_above || above;
    }
    return coldest;
  }

  Node* NextOf(const Space& space, bool may_drop_dirty) const override {
    const auto found = orders_.find(&space);
    return found == orders_.end() ? nullptr : Coldest(found->second, may_drop_dirty);
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
  struct Orders {
    Order clean, dirty;
    Order& At(Place place) { return place == Place::kClean ? clean : dirty; }
  };

  static Node* Coldest(const Orders& orders, bool may_drop_dirty) {
    const bool dirty = may_drop_dirty && !orders.dirty.empty();
    if (orders.clean.empty()) return dirty ? orders.dirty.begin()->node : nullptr;
    Node* const clean = orders.clean.begin()->node;
    if (!dirty) return clean;
    Node* const other = orders.dirty.begin()->node;
    return clean->stamp < other->stamp ? clean : other;
  }

  absl::flat_hash_map<const Space*, Orders> orders_;
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
