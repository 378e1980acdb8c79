#include "bench/trace/simulation.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <optional>
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
  // `give_up` is told of each block that goes.
  LeafLru(uint64_t unique, uint64_t capacity, uint64_t spared_share,
          std::function<void(TraceBlock)> give_up)
      : capacity_(capacity),
        spared_share_(spared_share),
        give_up_(std::move(give_up)),
        blocks_(unique) {}

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
    give_up_(victim);
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
  const std::function<void(TraceBlock)> give_up_;
  std::vector<Block> blocks_;
  Leaves leaves_[2];  // [1]: of blocks that were read
  uint64_t size_ = 0, read_ = 0, clock_ = 0;
};

// A log of blocks. The oldest goes when the newest needs its place.
class SsdLog {
 public:
  SsdLog(uint64_t unique, uint64_t capacity) : capacity_(capacity), places_(unique, 0) {}
  bool Has(TraceBlock block) const { return places_[block] != 0; }
  void Append(TraceBlock block) {
    log_.emplace_back(++last_, block);
    places_[block] = last_;
    ++size_;
  }
  // The oldest block while there are more than there is room for, no longer part of the log.
  std::optional<TraceBlock> TakeSurplus() {
    if (size_ <= capacity_) return std::nullopt;
    const auto [place, block] = log_.front();
    log_.pop_front();
    --size_;
    places_[block] = 0;
    return block;
  }

 private:
  const uint64_t capacity_;
  uint64_t size_ = 0, last_ = 0;
  std::deque<std::pair<uint64_t, TraceBlock>> log_;
  std::vector<uint64_t> places_;  // 0 = not there
};

// The blocks that were given up most recently.
class Ghosts {
 public:
  Ghosts(uint64_t unique, uint64_t limit) : limit_(limit), serials_(unique, 0) {}
  void Add(TraceBlock block) {
    serials_[block] = ++last_;
    by_age_.emplace_back(last_, block);
    while (by_age_.size() > limit_) {
      const auto [serial, oldest] = by_age_.front();
      by_age_.pop_front();
      if (serials_[oldest] == serial) serials_[oldest] = 0;
    }
  }
  bool Take(TraceBlock block) { return std::exchange(serials_[block], 0) != 0; }

 private:
  const uint64_t limit_;
  uint64_t last_ = 0;
  std::deque<std::pair<uint64_t, TraceBlock>> by_age_;
  std::vector<uint64_t> serials_;  // 0 = none
};

class Tiers {
 public:
  Tiers(const Trace& trace, uint64_t ram, uint64_t ssd, const SsdAdmission& admission)
      : trace_(trace),
        admission_(admission),
        ram_(trace.unique, ram, kSparedShare, [this](TraceBlock block) { GiveUp(block); }),
        ssd_(trace.unique, ssd),
        ghosts_(trace.unique, admission.ghosts),
        facts_(trace.unique),
        full_budget_(admission.blocks_per_s * admission.window_s),
        budget_(full_budget_) {}

  TraceResult Run() {
    for (const Trace::Request& request : trace_.requests) {
      Refill(request.at_ms);
      const std::span<const TraceBlock> path = trace_.blocks(request);
      result_.requested += path.size();
      Look(path);
      Touch(path);
      ram_.Use(path);
    }
    return result_;
  }

 private:
  struct Facts {
    uint32_t depth = 0;
    uint32_t touches = 0;  // since it was stored
    bool came_back = false;
    bool read = false;  // from the SSD since it was written
  };

  void Refill(double at_ms) {
    if (!std::isfinite(full_budget_)) return;
    const double earned = admission_.blocks_per_s * (at_ms - last_ms_) / 1e3;
    budget_ = std::min(full_budget_, budget_ + earned);
    last_ms_ = at_ms;
  }
  void Look(std::span<const TraceBlock> path) {
    for (const TraceBlock block : path) {
      const bool in_ram = ram_.Has(block);
      if (!in_ram && !ssd_.Has(block)) return;
      ++(in_ram ? result_.ram_hits : result_.ssd_hits);
      if (!in_ram) facts_[block].read = true;
    }
  }
  void Touch(std::span<const TraceBlock> path) {
    for (uint32_t depth = 0; depth < path.size(); ++depth) {
      Facts& facts = facts_[path[depth]];
      if (!ram_.Has(path[depth]) && !ssd_.Has(path[depth])) {
        facts = {.depth = depth, .came_back = ghosts_.Take(path[depth])};
      }
      ++facts.touches;
    }
  }
  void GiveUp(TraceBlock block) {
    if (ssd_.Has(block)) return;
    const Facts& facts = facts_[block];
    const bool chosen =
        facts.depth < admission_.shallow_blocks || facts.touches >= 2 || facts.came_back;
    const double wanted = chosen ? 1 : std::max(1.0, full_budget_ * admission_.everything_above);
    if (budget_ < wanted) return ghosts_.Add(block);
    Write(block);
    while (const std::optional<TraceBlock> oldest = ssd_.TakeSurplus()) Age(*oldest);
  }
  void Write(TraceBlock block) {
    budget_ -= 1;
    facts_[block].read = false;
    ssd_.Append(block);
    ++result_.ssd_writes;
  }
  void Age(TraceBlock block) {
    if (facts_[block].read && budget_ >= 1) return Write(block);
    if (!ram_.Has(block)) ghosts_.Add(block);
  }

  const Trace& trace_;
  const SsdAdmission admission_;
  LeafLru ram_;
  SsdLog ssd_;
  Ghosts ghosts_;
  std::vector<Facts> facts_;
  TraceResult result_;
  const double full_budget_;  // blocks
  double budget_, last_ms_ = 0;
};

TraceResult Simulate(const Trace& trace, uint64_t capacity, uint64_t spared_share) {
  LeafLru cache(trace.unique, capacity, spared_share, [](TraceBlock) {});
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

TraceResult SimulateTiers(const Trace& trace, uint64_t ram, uint64_t ssd,
                          const SsdAdmission& admission) {
  return Tiers(trace, ram, ssd, admission).Run();
}

}  // namespace prefixd::bench
