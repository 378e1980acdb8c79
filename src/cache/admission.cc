#include "cache/admission.h"

#include <algorithm>
#include <set>
#include <utility>

namespace prefixd::cache {

WriteBudget::WriteBudget(uint64_t bytes_per_s, std::chrono::seconds window,
                         const base::Clock* clock)
    : rate_(static_cast<double>(bytes_per_s) / 1e6),
      limit_(rate_ * 1e6 * static_cast<double>(window.count())),
      clock_(clock),
      refilled_us_(clock->MonotonicMicros()),
      left_(limit_) {}

void WriteBudget::Refill() {
  const int64_t now = clock_->MonotonicMicros();
  left_ = std::min(limit_, left_ + rate_ * static_cast<double>(now - refilled_us_));
  refilled_us_ = now;
}

void WriteBudget::Take(uint64_t bytes) {
  if (rate_ == 0) return;
  Refill();
  left_ -= static_cast<double>(bytes);
}

bool WriteBudget::spent() {
  if (rate_ == 0) return false;
  Refill();
  return left_ <= 0;
}

uint64_t WriteBudget::left_bytes() {
  if (rate_ == 0) return ~uint64_t{0};
  Refill();
  return left_ > 0 ? static_cast<uint64_t>(left_) : 0;
}

bool LikelyReuse::Admits(const index::SpillBlock& block) const {
  // What is stored counts as its first touch; a block that has a page on SSD keeps its others
  // there too.
  return block.first_token < kShallowTokens || block.touches >= 1 || block.was_ghost ||
         !block.ssd_pages.empty();
}

std::vector<index::SpillBlock> TakeRefused(const AdmissionRule& rule,
                                           std::vector<index::SpillBlock>* blocks) {
  std::set<block::BlockHash> needed;  // parents of admitted blocks
  std::vector<index::SpillBlock> admitted, refused;
  for (auto block = blocks->rbegin(); block != blocks->rend(); ++block) {
    const bool in = block->pages.empty() || needed.contains(block->hash) || rule.Admits(*block);
    if (in) needed.insert(block->parent);
    (in ? admitted : refused).push_back(std::move(*block));
  }
  std::ranges::reverse(admitted);
  *blocks = std::move(admitted);
  return refused;
}

}  // namespace prefixd::cache
