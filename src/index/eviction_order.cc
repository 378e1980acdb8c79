#include "index/eviction_order.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_set.h"

#include "index/space.h"

namespace prefixd::index {
namespace {

// For each space that has blocks in it an order by stamp of each kind of block, and an order of
// spaces by their coldest block of a kind: there may be very many spaces, and few of them have
// limits.
class SparingLru final : public EvictionPolicy {
 public:
  SparingLru(const Totals& totals, const PrefixIndex::Limits& limits)
      : totals_(totals), limits_(limits) {}

  void Put(Node& node, Place place) override {
    if (place == node.in_evict_order) return;
    const Space* const space = node.space();
    OfSpace& of = spaces_[space];
    Class& of_class = of.classes[node.read_again()];
    const OrderKey key{node.stamp, node.id(), &node};
    if (node.in_evict_order != Place::kNone) size_ -= of_class.At(node.in_evict_order).erase(key);
    if (place != Place::kNone) size_ += of_class.At(place).insert(key).second ? 1 : 0;
    node.in_evict_order = place;
    Rank(space, of, node.read_again(), false);
    Rank(space, of, node.read_again(), true);
    if (of.empty()) spaces_.erase(space);
  }

  Node* Next(bool may_drop_dirty) const override {
    Node* above_ceiling = nullptr;
    for (const Space* const space : with_ceiling_) {
      if (space->totals.ram_extents <= space->limits.ram_ceiling_bytes || IsBelowFloor(*space)) {
        continue;
      }
      above_ceiling = Sooner(above_ceiling, NextOf(*space, may_drop_dirty));
    }
    if (above_ceiling != nullptr) return above_ceiling;
    return Sooner(Coldest(false, may_drop_dirty), Coldest(true, may_drop_dirty));
  }

  Node* NextOf(const Space& space, bool may_drop_dirty) const override {
    const auto found = spaces_.find(&space);
    if (found == spaces_.end()) return nullptr;
    return Sooner(found->second.classes[false].Coldest(may_drop_dirty),
                  found->second.classes[true].Coldest(may_drop_dirty));
  }

  bool Spares(const Node& node) const override {
    return node.read_again() && totals_.read_again_extents <= limits_.most_spared_bytes;
  }

  void LimitsChanged(const Space& space) override {
    if (space.limits.ram_ceiling_bytes > 0) {
      with_ceiling_.insert(&space);
    } else {
      with_ceiling_.erase(&space);
    }
  }

  bool Is(const Node& node, Place place) const override {
    const auto found = spaces_.find(node.space());
    if (found == spaces_.end()) return place == Place::kNone;
    const OrderKey key{node.stamp, node.id(), const_cast<Node*>(&node)};
    const Class& own = found->second.classes[node.read_again()];
    const Class& other = found->second.classes[!node.read_again()];
    return own.clean.contains(key) == (place == Place::kClean) &&
           own.dirty.contains(key) == (place == Place::kDirty) && !other.clean.contains(key) &&
           !other.dirty.contains(key);
  }

  size_t size() const override { return size_; }

 private:
  static constexpr int64_t kNone = INT64_MAX;
  struct Class {
    Order clean, dirty;
    int64_t ranked[2] = {kNone, kNone};  // the space's stamps in coldest_

    Order& At(Place place) { return place == Place::kClean ? clean : dirty; }
    Node* Coldest(bool may_drop_dirty) const {
      Node* const of_clean = clean.empty() ? nullptr : clean.begin()->node;
      if (!may_drop_dirty || dirty.empty()) return of_clean;
      Node* const of_dirty = dirty.begin()->node;
      return of_clean != nullptr && of_clean->stamp < of_dirty->stamp ? of_clean : of_dirty;
    }
  };
  struct OfSpace {
    Class classes[2];  // [1]: blocks that were read again
    bool empty() const {
      return std::ranges::all_of(
          classes, [](const Class& each) { return each.clean.empty() && each.dirty.empty(); });
    }
  };

  static bool IsBelowFloor(const Space& space) {
    return space.totals.ram_extents <= space.limits.ram_floor_bytes;
  }
  // Returns which of the two goes first; either may be null.
  Node* Sooner(Node* a, Node* b) const {
    if (a == nullptr || b == nullptr) return a == nullptr ? b : a;
    const bool spares_a = Spares(*a);
    if (spares_a != Spares(*b)) return spares_a ? b : a;
    return a->stamp < b->stamp ? a : b;
  }

  void Rank(const Space* space, OfSpace& of, bool read_again, bool dirty_too) {
    const Node* const node = of.classes[read_again].Coldest(dirty_too);
    const int64_t stamp = node == nullptr ? kNone : node->stamp;
    int64_t& ranked = of.classes[read_again].ranked[dirty_too];
    if (stamp == ranked) return;
    auto& coldest = coldest_[read_again][dirty_too];
    if (ranked != kNone) coldest.erase({ranked, space});
    if (stamp != kNone) coldest.insert({stamp, space});
    ranked = stamp;
  }

  // Returns the coldest block of the class in all spaces that are above their floor.
  Node* Coldest(bool read_again, bool may_drop_dirty) const {
    for (const auto& [stamp, space] : coldest_[read_again][may_drop_dirty]) {
      if (!IsBelowFloor(*space)) {
        return spaces_.at(space).classes[read_again].Coldest(may_drop_dirty);
      }
    }
    return nullptr;
  }

  const Totals& totals_;
  const PrefixIndex::Limits& limits_;
  absl::flat_hash_map<const Space*, OfSpace> spaces_;
  // Spaces by the stamp of their coldest block: [read again][may drop dirty ones].
  absl::btree_set<std::pair<int64_t, const Space*>> coldest_[2][2];
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

std::unique_ptr<EvictionPolicy> MakeSparingLru(const Totals& totals,
                                               const PrefixIndex::Limits& limits) {
  return std::make_unique<SparingLru>(totals, limits);
}

}  // namespace prefixd::index
