// What the SSD takes: everything while three quarters of the write budget are left, then only what
// is likely to be asked for again, nothing once it is empty. What is refused stays in RAM and is
// dropped when it is evicted.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cache/write_budget.h"
#include "index/prefix_index.h"

namespace prefixd::cache {

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
