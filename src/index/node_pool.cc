#include "index/node_pool.h"

#include <algorithm>
#include <cstring>

#include "index/allocated.h"

namespace prefixd::index {

NodePool::~NodePool() {
  for (auto it = begin(); it != end(); ++it) (*it)->~Node();
}

Node* NodePool::Add(const Node& parent) {
  absl::btree_set<uint32_t>& room = room_[parent.space()];
  if (room.empty()) {
    if (given_back_.empty()) {
      given_back_.push_back(static_cast<uint32_t>(chunks_.size()));
      chunks_.emplace_back();
    }
    const uint32_t fresh = given_back_.back();
    given_back_.pop_back();
    chunks_[fresh] = std::make_unique_for_overwrite<Chunk>();
    chunks_[fresh]->head = {
        .space = parent.space(), .pool = this, .root = parent.Head().root, .number = fresh};
    room.insert(fresh);
    ++there_;
    ++with_room_;
  }
  const uint32_t first = *room.begin();
  Chunk& chunk = *chunks_[first];
  const auto at = static_cast<uint32_t>(std::countr_one(chunk.head.used));
  chunk.head.used |= uint64_t{1} << at;
  if (chunk.head.used == kFull) {
    room.erase(first);
    --with_room_;
  }
  ++size_;
  Node* const node = new (chunk.At(at)) Node;
  node->place_ = next_serial_++ * kChunkNodes + at;
  node->set_parent(&parent);
  return node;
}

void NodePool::Remove(Node* node) {
  const uint32_t number = node->number(), in = number / kChunkNodes;
  ChunkHead& head = chunks_[in]->head;
  node->~Node();
  absl::btree_set<uint32_t>& room = room_[head.space];
  if (head.used == kFull) {
    room.insert(in);
    ++with_room_;
  }
  head.used &= ~(uint64_t{1} << number % kChunkNodes);
  --size_;
  if (head.used != 0) return;
  room.erase(in);
  --with_room_;
  --there_;
  chunks_[in] = nullptr;
  given_back_.push_back(in);
}

Node* NodePool::Find(uint64_t id) const {
  const auto number = static_cast<uint32_t>(id);
  if (number / kChunkNodes >= chunks_.size()) return nullptr;
  Chunk* const chunk = chunks_[number / kChunkNodes].get();
  if (chunk == nullptr || (chunk->head.used >> number % kChunkNodes & 1) == 0) return nullptr;
  Node* const node = chunk->At(number % kChunkNodes);
  return node->id() == id ? node : nullptr;
}

uint32_t NodePool::AddSiblings(const ChildLess& less) {
  if (free_siblings_.empty()) {
    free_siblings_.push_back(static_cast<uint32_t>(siblings_.size()));
    siblings_.emplace_back();
  }
  const uint32_t number = free_siblings_.back();
  free_siblings_.pop_back();
  siblings_[number] = std::make_unique<Siblings>(less);
  return number;
}

void NodePool::RemoveSiblings(uint32_t number) {
  siblings_[number] = nullptr;
  free_siblings_.push_back(number);
}

void NodePool::Iterator::Skip() {
  while (at_ / kChunkNodes < pool_->chunks_.size()) {
    const Chunk* const chunk = pool_->chunks_[at_ / kChunkNodes].get();
    const uint64_t rest = chunk == nullptr ? 0 : chunk->head.used >> at_ % kChunkNodes;
    if (rest != 0) {
      at_ += static_cast<uint32_t>(std::countr_zero(rest));
      return;
    }
    at_ = (at_ / kChunkNodes + 1) * kChunkNodes;
  }
}

uint64_t NodePool::MemoryBytes() const {
  return there_ * Allocated(sizeof(Chunk)) + chunks_.capacity() * sizeof(chunks_[0]) +
         with_room_ * 6 + (given_back_.capacity() + free_siblings_.capacity()) * sizeof(uint32_t) +
         siblings_.capacity() * sizeof(siblings_[0]);
}

void SerialTable::Reserve(size_t nodes) {
  if (nodes > buckets_.size()) Rebuild(nodes);
}

void SerialTable::Shrink() {
  if (buckets_.size() > 64 && size_ < buckets_.size() / 4) {
    Rebuild(Grown());
  }
}

void SerialTable::Rebuild(size_t buckets) {
  buckets_ = std::vector<uint32_t>();  // freed first, so that memory never holds both tables
  buckets_.resize(buckets);
  size_ = 0;
  for (Node* const node : *pool_) {
    if (node->in_by_serial) Link(*node);
  }
}

void SerialTable::Link(Node& node) {
  uint32_t& bucket = BucketOf(node.serial());
  node.next_by_serial = std::exchange(bucket, node.number() + 1);
  node.in_by_serial = true;
  ++size_;
}

void SerialTable::Add(Node& node) {
  if (size_ == buckets_.size()) Reserve(Grown());
  Link(node);
}

void SerialTable::Remove(Node& node) {
  if (!node.in_by_serial) return;
  uint32_t* link = &BucketOf(node.serial());
  while (*link != node.number() + 1) link = &pool_->At(*link - 1)->next_by_serial;
  *link = node.next_by_serial;
  node.in_by_serial = false;
  --size_;
}

Node* SerialTable::Find(uint64_t serial) const {
  if (buckets_.empty()) return nullptr;
  uint32_t link = buckets_[serial % buckets_.size()];
  while (link != 0) {
    Node* const node = pool_->At(link - 1);
    if (node->serial() == serial) return node;
    link = node->next_by_serial;
  }
  return nullptr;
}

}  // namespace prefixd::index
