#include "index/children.h"

#include "index/allocated.h"
#include "index/node.h"
#include "index/space.h"

namespace prefixd::index {

bool ChildLess::operator()(const Node* a, const Node* b) const {
  return block::Compare(a->view(), b->view()) < 0;
}
bool ChildLess::operator()(const Node* a, const block::SequenceView& b) const {
  ++*comparisons;
  return block::Compare(a->view(), b) < 0;
}
bool ChildLess::operator()(const block::SequenceView& a, const Node* b) const {
  ++*comparisons;
  return block::Compare(a, b->view()) < 0;
}

namespace {

ChildLess LessOf(const Node* node) { return {node->space()->comparisons}; }

}  // namespace

Children::Iterator& Children::Iterator::operator++() {
  if (only_ != nullptr) {
    past_ = true;
  } else {
    ++at_;
  }
  return *this;
}
Children::Iterator& Children::Iterator::operator--() {
  if (only_ != nullptr) {
    past_ = false;
  } else {
    --at_;
  }
  return *this;
}
Children::Iterator Children::Iterator::operator++(int) {
  const Iterator before = *this;
  ++*this;
  return before;
}
Children::Iterator Children::Iterator::operator--(int) {
  const Iterator before = *this;
  --*this;
  return before;
}

Children::~Children() { delete many(); }

Children::Iterator Children::begin() const {
  return many() != nullptr ? Iterator(many()->set.begin()) : Iterator(only(), false);
}
Children::Iterator Children::end() const {
  return many() != nullptr ? Iterator(many()->set.end()) : Iterator(only(), !empty());
}

Children::Iterator Children::lower_bound(const block::SequenceView& tokens) const {
  if (many() != nullptr) return Iterator(many()->set.lower_bound(tokens));
  return Iterator(only(), !empty() && LessOf(only())(only(), tokens));
}
Children::Iterator Children::upper_bound(const block::SequenceView& tokens) const {
  if (many() != nullptr) return Iterator(many()->set.upper_bound(tokens));
  return Iterator(only(), !empty() && !LessOf(only())(tokens, only()));
}
Children::Iterator Children::find(const block::SequenceView& tokens) const {
  if (many() != nullptr) return Iterator(many()->set.find(tokens));
  const Iterator at = lower_bound(tokens);
  return at == end() || LessOf(only())(tokens, only()) ? end() : at;
}
Children::Iterator Children::find(Node* child) const {
  return many() != nullptr ? Iterator(many()->set.find(child)) : Iterator(only(), only() != child);
}

Children::Iterator Children::insert(Node* child) {
  if (empty()) {
    place_ = reinterpret_cast<uintptr_t>(child);
    return begin();
  }
  if (many() == nullptr) {
    Node* const first = only();
    auto* const both = new Many(LessOf(first));
    both->set.insert(first);
    both->ram = first->counted_ram ? 1 : 0;
    both->spill = first->counted_spill ? 1 : 0;
    place_ = reinterpret_cast<uintptr_t>(both) + kMany;
  }
  many()->likely = child;
  return Iterator(many()->set.insert(child).first);
}

void Children::erase(Node* child) {
  Many* const all = many();
  if (all == nullptr) {
    if (only() == child) place_ = 0;
    return;
  }
  all->set.erase(child);
  if (all->likely == child) all->likely = *all->set.begin();
  if (all->set.size() > 1) return;
  place_ = reinterpret_cast<uintptr_t>(*all->set.begin());
  delete all;
}

uint32_t Children::ram() const {
  if (many() != nullptr) return many()->ram;
  return !empty() && only()->counted_ram ? 1 : 0;
}
uint32_t Children::spill() const {
  if (many() != nullptr) return many()->spill;
  return !empty() && only()->counted_spill ? 1 : 0;
}
void Children::CountRam(bool more) {
  if (many() != nullptr) more ? ++many()->ram : --many()->ram;
}
void Children::CountSpill(bool more) {
  if (many() != nullptr) more ? ++many()->spill : --many()->spill;
}

uint64_t Children::MemoryBytes() const {
  // A tree's nodes are two thirds full, give or take.
  return many() != nullptr ? Allocated(sizeof(Many)) + many()->set.size() * 12 : 0;
}

}  // namespace prefixd::index
