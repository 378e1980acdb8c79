// The memory of blocks: chunks in which each block has a number, so that a table needs four bytes
// to name one.
//
// Internal to index/, guarded by the index's mutex. A chunk whose last block goes is freed.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"

#include "index/node.h"

namespace prefixd::index {

class NodePool {
  struct Chunk {
    ChunkHead head;
    alignas(Node) std::byte bytes[kChunkNodes * sizeof(Node)];
    Node* At(uint32_t i) { return reinterpret_cast<Node*>(bytes) + i; }
  };
  static_assert(offsetof(Chunk, bytes) == sizeof(ChunkHead));
  static_assert(kChunkNodes == 64);
  static constexpr uint64_t kFull = ~uint64_t{0};

 public:
  NodePool() = default;
  ~NodePool();
  NodePool(const NodePool&) = delete;
  NodePool& operator=(const NodePool&) = delete;

  // Makes a child of `parent`, in the first place that is free in their space's chunks. Its id
  // comes again only after 2^26 other blocks.
  Node* Add(const Node& parent);
  void Remove(Node* node);
  void ForgetSpace(Space* space) { room_.erase(space); }  // requires: it has no block

  Node* At(uint32_t number) const {
    return chunks_[number / kChunkNodes]->At(number % kChunkNodes);
  }
  // Returns nullptr when the block with this id is gone.
  Node* Find(uint64_t id) const;

  uint32_t AddSiblings(const ChildLess& less);  // returns their number
  void RemoveSiblings(uint32_t number);
  Siblings& SiblingsAt(uint32_t number) { return *siblings_[number]; }

  // Calls look(Node&) for at most `blocks` blocks from number `from` on. Returns the number to go
  // on from, or kNone if there are no more.
  static constexpr uint32_t kNone = ~uint32_t{0};
  template <typename Look>
  uint32_t ForSome(uint32_t from, uint32_t blocks, Look look) const {
    const auto end = static_cast<uint32_t>(chunks_.size()) * kChunkNodes;
    Iterator it(this, from);
    for (uint32_t looked = 0; it.at_ < end; ++looked) {
      if (looked == blocks) return it.at_;
      look(**it);
      ++it;
    }
    return kNone;
  }

  // Visits the blocks in no given order. A block added meanwhile may be visited or not; only the
  // current block may be removed.
  class Iterator {
   public:
    Node* operator*() const { return pool_->At(at_); }
    Iterator& operator++() {
      ++at_;
      Skip();
      return *this;
    }
    bool operator==(const Iterator& other) const { return at_ == other.at_; }

   private:
    friend class NodePool;
    Iterator(const NodePool* pool, uint32_t at) : pool_(pool), at_(at) { Skip(); }
    void Skip();
    const NodePool* pool_;
    uint32_t at_;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, static_cast<uint32_t>(chunks_.size()) * kChunkNodes}; }

  size_t size() const { return size_; }
  uint64_t MemoryBytes() const;

 private:
  std::vector<std::unique_ptr<Chunk>> chunks_;                   // nullptr: freed
  std::vector<uint32_t> given_back_;                             // numbers of freed chunks
  absl::flat_hash_map<Space*, absl::btree_set<uint32_t>> room_;  // a space's chunks with room
  size_t size_ = 0, there_ = 0, with_room_ = 0;      // blocks; chunks in use; those with room
  uint32_t next_serial_ = 0;                         // of Node::place_
  std::vector<std::unique_ptr<Siblings>> siblings_;  // nullptr: free
  std::vector<uint32_t> free_siblings_;              // their numbers
};

inline Node* Node::parent() const {
  if (parent_ < kRootIsParent) return pool().At(parent_);
  return parent_ == kNoParent ? nullptr : Head().root;
}

// A hash table of blocks by serial. Its chains link the blocks themselves.
class SerialTable {
 public:
  explicit SerialTable(const NodePool* pool) : pool_(pool) {}
  void Reserve(size_t nodes);
  void Shrink();  // does nothing unless more than three quarters of a large table are empty
  void Add(Node& node);
  void Remove(Node& node);            // does nothing when the block is not in the table
  Node* Find(uint64_t serial) const;  // nullptr when there is none
  size_t size() const { return size_; }
  uint64_t GrowthBytes() const {  // what the next Add would allocate
    return size_ < buckets_.size() ? 0 : Grown() * sizeof(uint32_t) - MemoryBytes();
  }
  uint64_t MemoryBytes() const { return buckets_.capacity() * sizeof(uint32_t); }

 private:
  // Grows by half, so that a block takes 4 to 6 bytes.
  size_t Grown() const { return std::max<size_t>(64, size_ + size_ / 2); }
  uint32_t& BucketOf(uint64_t serial) { return buckets_[serial % buckets_.size()]; }
  void Link(Node& node);
  void Rebuild(size_t buckets);

  const NodePool* const pool_;
  std::vector<uint32_t> buckets_;  // number of the chain's first block + 1; 0: no chain
  size_t size_ = 0;
};

}  // namespace prefixd::index
