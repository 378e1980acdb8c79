#include "bench/trace/simulation.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace prefixd::bench {
namespace {

constexpr TraceBlock kNone = ~TraceBlock{0};

constexpr uint64_t kPlain = ~uint64_t{0};  // spares nothing
constexpr uint64_t kSparedShare = 4;       // one block in so many, as the daemon does

// Blocks in the order in which they go: leaves only, least recently used first; while the blocks
// that were read since they were inserted are at most one in `spared_share`, the others first.
class LeafLru {
 public:
  LeafLru(uint64_t unique, uint64_t capacity, uint64_t spared_share)
      : capacity_(capacity), spared_share_(spared_share), blocks_(unique) {}

  bool Has(TraceBlock block) const { return blocks_[block].present; }

  // Reads what is there of a path, then inserts and refreshes the whole. A path longer than
  // everything there is room for stops where the room ends.
  void Use(std::span<const TraceBlock> path) {
    size_t there = 0;
    while (there < path.size() && Has(path[there])) ++there;
    Refresh(path.first(there), /*read=*/true);
    while (there < path.size()) {
      if (size_ == capacity_ && !EvictBut(there == 0 ? kNone : path[there - 1])) break;
      Insert(path[there], there == 0 ? kNone : path[there - 1]);
      ++there;
    }
    Refresh(path.first(there), /*read=*/false);
  }

 private:
  struct Block {
    bool present = false;
    bool read = false;  // since it was inserted
    TraceBlock parent = kNone;
    uint32_t children = 0;  // present ones
    uint64_t stamp = 0;
  };
  using Leaves = std::set<std::pair<uint64_t, TraceBlock>>;

  Leaves& LeavesLike(const Block& block) { return leaves_[block.read]; }
  void Insert(TraceBlock block, TraceBlock parent) {
    blocks_[block] = {.present = true, .parent = parent, .stamp = ++clock_};
    LeavesLike(blocks_[block]).emplace(clock_, block);
    if (parent != kNone && blocks_[parent].children++ == 0) {
      LeavesLike(blocks_[parent]).erase({blocks_[parent].stamp, parent});
    }
    ++size_;
  }
  // The block that goes next, never `kept`; kNone if there is no other.
  TraceBlock Victim(TraceBlock kept) const {
    const bool spares = spared_share_ != kPlain && read_ <= capacity_ / spared_share_;
    std::pair<uint64_t, TraceBlock> victim{0, kNone};
    for (const Leaves& leaves : leaves_) {
      if (leaves.empty() || leaves.begin()->second == kept) continue;
      if (victim.second == kNone || (!spares && *leaves.begin() < victim)) victim = *leaves.begin();
    }
    return victim.second;
  }
  bool EvictBut(TraceBlock kept) {
    const TraceBlock victim = Victim(kept);
    if (victim == kNone) return false;
    Block& block = blocks_[victim];
    LeavesLike(block).erase({block.stamp, victim});
    block.present = false;
    if (block.read) --read_;
    if (block.parent != kNone && --blocks_[block.parent].children == 0) {
      LeavesLike(blocks_[block.parent]).emplace(blocks_[block.parent].stamp, block.parent);
    }
    --size_;
    return true;
  }
  void Refresh(std::span<const TraceBlock> path, bool read) {
    for (auto at = path.rbegin(); at != path.rend(); ++at) {
      Block& block = blocks_[*at];
      const bool leaf = block.children == 0;
      if (leaf) LeavesLike(block).erase({block.stamp, *at});
      if (read && !std::exchange(block.read, true)) ++read_;
      block.stamp = ++clock_;
      if (leaf) LeavesLike(block).emplace(block.stamp, *at);
    }
  }

  const uint64_t capacity_, spared_share_;
  std::vector<Block> blocks_;
  Leaves leaves_[2];  // [1]: of blocks that were read
  uint64_t size_ = 0, read_ = 0, clock_ = 0;
};

TraceResult Simulate(const Trace& trace, uint64_t capacity, uint64_t spared_share) {
  LeafLru cache(trace.unique, capacity, spared_share);
  TraceResult result;
  for (const Trace::Request& request : trace.requests) {
    const std::span<const TraceBlock> path = trace.blocks(request);
    result.requested += path.size();
    const auto miss =
        std::find_if(path.begin(), path.end(), [&](TraceBlock block) { return !cache.Has(block); });
    result.ram_hits += static_cast<uint64_t>(miss - path.begin());
    cache.Use(path);
  }
  return result;
}

}  // namespace

TraceResult SimulateLeafLru(const Trace& trace, uint64_t capacity) {
  return Simulate(trace, capacity, kPlain);
}

TraceResult SimulateSparingLru(const Trace& trace, uint64_t capacity) {
  return Simulate(trace, capacity, kSparedShare);
}

}  // namespace prefixd::bench
