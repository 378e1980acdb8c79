// The RAM tier of a simulation: which blocks are in it, and which goes next.
//
// Blocks are refreshed from the end of a path to its beginning, and who reads a block reads those
// before it too. So in either list no block is older than one below it of the same list, and the
// oldest block of the lists is a leaf: lists do what an order of leaves does.
//
// Plain values; one thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sizing/trace.h"

namespace prefixd::sizing {

inline constexpr TraceBlock kNoBlock = ~TraceBlock{0};

class SimulatedRam {
 public:
  // Sizes are in quarters of a full block, as extents are (ram/arena.h).
  SimulatedRam(size_t blocks, uint64_t capacity) : capacity_(capacity), blocks_(blocks) {}

  bool Has(TraceBlock block) const { return blocks_[block].in; }
  bool IsRead(TraceBlock block) const { return blocks_[block].read; }
  bool MayGo(TraceBlock block) const { return blocks_[block].may_go; }
  uint64_t stamp(TraceBlock block) const { return blocks_[block].stamp; }
  TraceBlock parent(TraceBlock block) const { return blocks_[block].parent; }
  uint64_t capacity() const { return capacity_; }
  // Requires: size <= free().
  void Shrink(uint64_t size) { capacity_ -= size; }
  uint64_t free() const { return capacity_ - used_; }
  // What the spared class takes, at most its share.
  uint64_t spared() const {
    return read_ <= capacity_ / kSparedShare ? read_ : capacity_ / kSparedShare;
  }
  bool Spares() const { return read_ <= capacity_ / kSparedShare; }

  // Makes the block the newest of its list, that of blocks that were read if `read` now or before.
  // `uses`: number of the request.
  void Touch(TraceBlock block, uint64_t uses, bool read);
  // Requires: !Has(block), size <= free().
  void Insert(TraceBlock block, TraceBlock parent, uint32_t size, uint64_t uses);
  // Whether the block may be given up as it is: it is on SSD too, or nobody wants it there.
  void SetMayGo(TraceBlock block, bool may_go);
  // Bytes, in quarters of blocks, of those that may go.
  uint64_t may_go() const { return may_go_; }
  // Returns the block that goes next; kNoBlock if none may. Never one of request `uses`.
  TraceBlock Victim(uint64_t uses) const;
  void Evict(TraceBlock block);
  uint64_t blocks() const { return count_; }
  uint64_t uses(TraceBlock block) const { return blocks_[block].uses; }
  uint64_t newest_stamp() const { return clock_; }
  uint32_t size(TraceBlock block) const { return blocks_[block].size; }

 private:
  static constexpr uint64_t kSparedShare = 4;
  struct Block {
    TraceBlock newer = kNoBlock, older = kNoBlock;
    TraceBlock parent = kNoBlock;
    uint32_t children = 0;  // in RAM
    uint64_t stamp = 0;
    uint64_t uses = 0;
    uint32_t size = 0;
    bool in = false, read = false, may_go = false;
  };
  struct List {
    TraceBlock newest = kNoBlock, oldest = kNoBlock;
  };
  void Link(TraceBlock block);
  void Unlink(TraceBlock block);
  // Returns the first that may go and was used last before that stamp; kNoBlock: none.
  TraceBlock Oldest(const List& list, uint64_t uses, uint64_t before) const;

  uint64_t capacity_;
  std::vector<Block> blocks_;
  List lists_[2];  // [1]: blocks that were read since they were stored
  uint64_t count_ = 0, used_ = 0, read_ = 0, may_go_ = 0, clock_ = 0;
};

}  // namespace prefixd::sizing
