#include "index/children.h"

#include "index/allocated.h"
#include "index/node_pool.h"
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

uint32_t& Children::place() const { return node_->children_; }
Siblings* Children::many() const {
  return (place() & kMany) != 0 ? &node_->pool().SiblingsAt(place() - kMany) : nullptr;
}
Node* Children::only() const {
  return empty() || (place() & kMany) != 0 ? nullptr : node_->pool().At(place() - 1);
}

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
    place() = child->number() + 1;
    return begin();
  }
  if (many() == nullptr) {
    Node* const first = only();
    place() = node_->pool().AddSiblings(LessOf(first)) + kMany;
    many()->set.insert(first);
    many()->ram = first->counted_ram ? 1 : 0;
    many()->spill = first->counted_spill ? 1 : 0;
  }
  Siblings* const all = many();
  all->likely = child;
  return Iterator(all->set.insert(child).first);
}

void Children::erase(Node* child) {
  Siblings* const all = many();
  if (all == nullptr) {
    if (only() == child) place() = 0;
    return;
  }
  all->set.erase(child);
  if (all->likely == child) all->likely = *all->set.begin();
  if (all->set.size() > 1) return;
  const uint32_t number = place() - kMany;
  place() = (*all->set.begin())->number() + 1;
  node_->pool().RemoveSiblings(number);
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
  // The set's tree nodes are about two thirds full.
  return many() != nullptr ? Allocated(sizeof(Siblings)) + many()->set.size() * 12 : 0;
}

}  // namespace prefixd::index
