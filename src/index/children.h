// The children of a block in token order. None or one, as most blocks have, takes no allocation.
//
// Internal to index/. Plain data without locks, guarded by the index's mutex.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "absl/container/btree_set.h"

#include "block/tokens.h"

namespace prefixd::index {

struct Node;

// Orders children by token. Lookups take the tokens themselves; `comparisons` counts their
// comparisons.
struct ChildLess {
  using is_transparent = void;
  uint64_t* comparisons = nullptr;
  bool operator()(const Node* a, const Node* b) const;
  bool operator()(const Node* a, const block::SequenceView& b) const;
  bool operator()(const block::SequenceView& a, const Node* b) const;
};

// The children of a block that has more than one. They stand in the pool.
struct Siblings {
  using Set = absl::btree_set<Node*, ChildLess>;
  explicit Siblings(ChildLess less) : set(less) {}
  Set set;
  Node* likely = nullptr;
  uint32_t ram = 0, spill = 0;
};

// A view of a block's children. Changes write through to the block.
class Children {
  using Set = Siblings::Set;

 public:
  class Iterator {
   public:
    using iterator_category = std::bidirectional_iterator_tag;
    using value_type = Node*;
    using difference_type = std::ptrdiff_t;
    using pointer = Node* const*;
    using reference = Node*;

    Iterator() = default;
    Node* operator*() const { return only_ != nullptr ? only_ : *at_; }
    Iterator& operator++();
    Iterator& operator--();
    Iterator operator++(int);
    Iterator operator--(int);
    bool operator==(const Iterator& other) const {
      return only_ == other.only_ && past_ == other.past_ && at_ == other.at_;
    }

   private:
    friend class Children;
    Iterator(Node* only, bool past) : only_(only), past_(past) {}
    explicit Iterator(Set::const_iterator at) : at_(at) {}

    Node* only_ = nullptr;
    bool past_ = false;  // behind only_
    Set::const_iterator at_{};
  };
  using const_iterator = Iterator;

  explicit Children(Node* node) : node_(node) {}

  bool empty() const { return place() == 0; }
  size_t size() const { return (place() & kMany) != 0 ? many()->set.size() : empty() ? 0 : 1; }
  Iterator begin() const;
  Iterator end() const;
  // Return the first child that is not before the tokens, and the first that is behind them.
  Iterator lower_bound(const block::SequenceView& tokens) const;
  Iterator upper_bound(const block::SequenceView& tokens) const;
  Iterator find(const block::SequenceView& tokens) const;
  Iterator find(Node* child) const;
  // Makes `child` the likely one.
  Iterator insert(Node* child);
  void erase(Node* child);

  // Returns mostly the youngest child; nullptr without children.
  Node* likely() const { return (place() & kMany) != 0 ? many()->likely : only(); }
  // Number of children whose subtrees have RAM pages, and of those whose subtrees want a spill. The
  // caller calls CountRam or CountSpill before it changes a child's counted_ram or counted_spill.
  uint32_t ram() const;
  uint32_t spill() const;
  void CountRam(bool more);
  void CountSpill(bool more);

  uint64_t MemoryBytes() const;

 private:
  // place() is Node::children_: 0, the number of the only child + 1, or that of Siblings + kMany.
  static constexpr uint32_t kMany = uint32_t{1} << 31;

  uint32_t& place() const;
  Siblings* many() const;  // nullptr if there is at most one child
  Node* only() const;      // nullptr if there is no child or more than one

  Node* node_;
};

}  // namespace prefixd::index
