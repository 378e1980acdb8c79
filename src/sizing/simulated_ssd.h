// The SSD tier of a simulation: a log of segments, of which the oldest leave, and the budget of
// writes (cache/write_budget.h).
//
// Plain values; one thread.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "sizing/simulated_ram.h"
#include "sizing/trace.h"

namespace prefixd::sizing {

enum class Admission : uint8_t { kNothing, kLikelyReuse, kAll };

class SimulatedWrites {
 public:
  SimulatedWrites(double share, uint64_t most)
      : share_(share), most_(static_cast<double>(most)), saved_(most_) {}
  void Asked(uint64_t size) {
    saved_ = std::min(most_, saved_ + share_ * static_cast<double>(size));
  }
  void Take(uint64_t size) { saved_ = std::max(-most_, saved_ - static_cast<double>(size)); }
  Admission admits() const {
    if (share_ == 0) return Admission::kAll;
    if (saved_ <= 0) return Admission::kNothing;
    return saved_ > most_ * 0.75 ? Admission::kAll : Admission::kLikelyReuse;
  }
  bool limited() const { return share_ > 0; }
  uint64_t left() const { return saved_ > 0 ? static_cast<uint64_t>(saved_) : 0; }

 private:
  const double share_, most_;
  double saved_;
};

class SimulatedSsd {
 public:
  struct Segment {
    uint64_t id = 0;
    uint64_t size = 0;
    uint64_t stamp = 0;  // the newest when it was written
    std::vector<TraceBlock> blocks;
  };

  // Sizes are in quarters of a block. A segment is `segment` long, or shorter.
  SimulatedSsd(size_t blocks, uint64_t capacity, uint64_t segment)
      : capacity_(capacity), segment_(segment), of_block_(capacity > 0 ? blocks : 0) {}

  bool enabled() const { return capacity_ > 0; }
  bool Has(TraceBlock block) const { return enabled() && of_block_[block] != 0; }
  bool IsIn(TraceBlock block, const Segment& segment) const {
    return of_block_[block] == segment.id;
  }
  uint64_t segment_size() const { return segment_; }
  uint64_t last_id() const { return last_id_; }
  uint64_t written() const { return written_; }

  // How many of the oldest segments leave for the next one, none above `keep_after`.
  size_t CountLeaving(uint64_t keep_after) const;
  bool HasRoom(uint64_t size) const { return files_ + FileSize(size) <= capacity_; }
  const Segment& segment(size_t i) const { return segments_[i]; }
  bool empty() const { return segments_.empty(); }
  // `size`: of all blocks.
  void Write(std::vector<TraceBlock> blocks, uint64_t size, uint64_t stamp);
  // Forgets the block; its bytes stay in the segment.
  void Forget(TraceBlock block) { of_block_[block] = 0; }
  size_t segments() const { return segments_.size(); }
  // Takes the oldest segment out. The blocks that were in it alone are no longer here.
  Segment PopOldest();

 private:
  // Table files are a little larger than what is in them (cache/store/age_out.cc).
  static uint64_t FileSize(uint64_t size) { return size + size / 16; }

  const uint64_t capacity_, segment_;
  std::vector<uint32_t> of_block_;  // id of the segment that has it; 0: none
  std::deque<Segment> segments_;
  uint32_t last_id_ = 0;
  uint64_t files_ = 0, written_ = 0;
};

}  // namespace prefixd::sizing
