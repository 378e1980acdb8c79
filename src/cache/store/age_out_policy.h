// What ages out of the SSD tier next, and how much of it may be written again.
//
// A segment leaves when the budget asks for its room. Pages used since half the budget was last
// written are worth keeping, the others as far as rewriting has been saved up. All of it comes out
// of one allowance, a share of what is spilled, so that write amplification is bounded whatever the
// workload does.
//
// Not thread-safe: the one who writes segments owns it.
#pragma once
#include <cstdint>
#include <map>
#include <span>

#include "index/prefix_index.h"
#include "ssd/segment_store.h"

namespace prefixd::cache {

class AgeOutPolicy {
 public:
  static constexpr double kRewriteShare = 0.085;  // of what is spilled

  // A segment was written while the index's latest stamp was `stamp`.
  void Written(const ssd::SegmentInfo& segment, int64_t stamp);
  void Dropped(const ssd::SegmentInfo& segment);
  // `bytes` that the SSD did not have; what is saved up is at most a tenth of `budget_bytes`.
  void Spilled(uint64_t bytes, uint64_t budget_bytes);
  // `bytes` that it had: written again, or to be written again because their copy is dropped. More
  // than the allowance: less is rewritten later.
  void Rewritten(uint64_t bytes) { allowance_ -= static_cast<double>(bytes); }
  uint64_t allowance_bytes() const;

  // How many of the oldest of `segments` have to leave so that `excess_bytes` are free; none newer
  // than `keep_after`.
  static size_t CountLeaving(std::span<const ssd::SegmentInfo> segments, uint64_t excess_bytes,
                             uint64_t keep_after);
  // What of the first `leaving` of `segments` (all that are there) is worth writing again.
  index::RewriteOptions Choose(std::span<const ssd::SegmentInfo> segments, size_t leaving,
                               uint64_t budget_bytes) const;
  // The same where `bytes` may be written in all: whatever was used since it was written.
  index::RewriteOptions ChooseWithin(std::span<const ssd::SegmentInfo> segments, size_t leaving,
                                     uint64_t bytes) const;

 private:
  int64_t StampOf(const ssd::SegmentInfo& segment) const;

  double allowance_ = 0;                // bytes; below 0: overdrawn
  std::map<uint64_t, int64_t> stamps_;  // by a segment's first sequence
};

}  // namespace prefixd::cache
