// What the SSD takes: everything while the write-rate budget lasts, beyond it only what is likely
// to be asked for again. What is refused stays in RAM and is dropped when it is evicted.
//
// The budget is one token bucket over a long window: bursts are free, wear over a day is not.
#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "index/prefix_index.h"

namespace prefixd::cache {

// Not thread-safe.
class WriteBudget {
 public:
  // `bytes_per_s` 0: no limit. It starts with what a whole window allows.
  WriteBudget(uint64_t bytes_per_s, std::chrono::seconds window, const base::Clock* clock);
  void Take(uint64_t bytes);  // may overdraw: what is admitted is written
  bool spent();
  // Written at the whole rate, the window's worth would last so long; for stats.
  uint64_t left_bytes();
  uint64_t bytes_per_s() const { return static_cast<uint64_t>(rate_ * 1e6); }

 private:
  void Refill();

  const double rate_;   // bytes per us; 0: no limit
  const double limit_;  // bytes
  const base::Clock* const clock_;
  int64_t refilled_us_;
  double left_;
};

// Policy behind a small interface, so that traces can compare others.
class AdmissionRule {
 public:
  virtual ~AdmissionRule() = default;
  // With the budget spent: whether the block is written all the same.
  virtual bool Admits(const index::SpillBlock& block) const = 0;
};

// Near the root (prompts that many sequences share begin there), used more than once, or given up
// shortly before it was stored again.
class LikelyReuse final : public AdmissionRule {
 public:
  static constexpr uint32_t kShallowTokens = 8192;
  bool Admits(const index::SpillBlock& block) const override;
};

// Takes those that are refused out of `blocks` (parents before children) and returns them. An
// ancestor of a block that is admitted is admitted: a path has no gaps.
std::vector<index::SpillBlock> TakeRefused(const AdmissionRule& rule,
                                           std::vector<index::SpillBlock>* blocks);

}  // namespace prefixd::cache
