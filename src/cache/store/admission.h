// What the SSD takes: everything while three quarters of the write budget are left, then only what
// is likely to be asked for again, nothing once it is empty. What is refused stays in RAM and is
// dropped when it is evicted.
//
// The budget is two token buckets over long windows, from which all that is written is taken, for
// the first time or again. One fills with time: wear over a day is bounded, bursts are free. One
// fills with what is asked for: writing more than a share of that does not gain hits in return.
#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "index/prefix_index.h"

namespace prefixd::cache {

enum class Admission { kNothing, kLikelyReuse, kAll };

// Not thread-safe.
class WriteBudget {
 public:
  static constexpr double kEverythingAbove = 0.75;  // of a full bucket that fills with requests
  struct Limits {
    uint64_t bytes_per_s = 0;  // 0: no limit
    std::chrono::seconds window{0};
    double share = 0;  // of the bytes asked for; 0: no limit
  };
  // It starts with what a whole window allows, and with nothing of the share.
  WriteBudget(const Limits& limits, const base::Clock* clock);

  // What the SSD holds may be saved up; `bytes` at once, of an SSD that is to be filled first, and
  // so what a budget grows by.
  void SaveUpTo(uint64_t ssd_bytes);
  void Add(uint64_t bytes);
  // Pages that a request found or that were stored.
  void Asked(uint64_t bytes);
  void Take(uint64_t bytes);  // may overdraw: what is admitted is written
  Admission admits();
  bool has_share() const { return limits_.share > 0; }
  // Of the smaller bucket; all ones where nothing is limited.
  uint64_t left_bytes();

 private:
  void Refill();

  const Limits limits_;
  const double window_bytes_;
  const base::Clock* const clock_;
  int64_t refilled_us_;
  double left_;                  // of the rate
  double most_ = 0, saved_ = 0;  // of the share
};

// Policy behind a small interface, so that traces can compare others.
class AdmissionRule {
 public:
  virtual ~AdmissionRule() = default;
  // When WriteBudget::admits() says kLikelyReuse: whether the block is written.
  virtual bool Admits(const index::SpillBlock& block) const = 0;
};

// Near the root (prompts that many sequences share begin there), used more than once, or given up
// shortly before it was stored again.
class LikelyReuse final : public AdmissionRule {
 public:
  explicit LikelyReuse(uint32_t shallow_tokens) : shallow_tokens_(shallow_tokens) {}
  bool Admits(const index::SpillBlock& block) const override;

 private:
  const uint32_t shallow_tokens_;
};

class Never final : public AdmissionRule {
 public:
  bool Admits(const index::SpillBlock&) const override { return false; }
};

// Takes those that are refused out of `blocks` (parents before children) and returns them. An
// ancestor of a block that is admitted is admitted: a path has no gaps.
std::vector<index::SpillBlock> TakeRefused(const AdmissionRule& rule,
                                           std::vector<index::SpillBlock>* blocks);

}  // namespace prefixd::cache
