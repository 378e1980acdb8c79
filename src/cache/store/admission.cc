#include "cache/store/admission.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace prefixd::cache {

WriteBudget::WriteBudget(const Limits& limits, const base::Clock* clock)
    : limits_(limits),
      window_bytes_(static_cast<double>(limits.bytes_per_s) *
                    static_cast<double>(limits.window.count())),
      clock_(clock),
      refilled_us_(clock->MonotonicMicros()),
      left_(window_bytes_) {}

void WriteBudget::Refill() {
  const int64_t now = clock_->MonotonicMicros();
  const double earned =
      static_cast<double>(limits_.bytes_per_s) * static_cast<double>(now - refilled_us_) / 1e6;
  left_ = std::min(window_bytes_, left_ + earned);
  refilled_us_ = now;
}

void WriteBudget::SaveUpTo(uint64_t ssd_bytes) {
  const auto most = static_cast<double>(ssd_bytes);
  const double grown = most_ > 0 ? std::max(0.0, most - most_) : 0;
  most_ = most;
  saved_ = std::min(most_, saved_ + grown);
}

void WriteBudget::Add(uint64_t bytes) {
  saved_ = std::min(most_, saved_ + static_cast<double>(bytes));
}

void WriteBudget::Asked(uint64_t bytes) {
  saved_ = std::min(most_, saved_ + limits_.share * static_cast<double>(bytes));
}

void WriteBudget::Take(uint64_t bytes) {
  Refill();
  left_ -= static_cast<double>(bytes);
  // What had to be written all the same is not paid back for longer than it takes to save up.
  saved_ = std::max(-most_, saved_ - static_cast<double>(bytes));
}

Admission WriteBudget::admits() {
  Refill();
  auto admitted = Admission::kAll;
  if (limits_.bytes_per_s > 0 && left_ <= 0) admitted = Admission::kLikelyReuse;
  if (!has_share()) return admitted;
  if (saved_ <= 0) return Admission::kNothing;
  return saved_ > most_ * kEverythingAbove ? admitted : Admission::kLikelyReuse;
}

uint64_t WriteBudget::left_bytes() {
  Refill();
  double left = std::numeric_limits<double>::infinity();
  if (limits_.bytes_per_s > 0) left = left_;
  if (has_share()) left = std::min(left, saved_);
  if (std::isinf(left)) return ~uint64_t{0};
  return left > 0 ? static_cast<uint64_t>(left) : 0;
}

bool LikelyReuse::Admits(const index::SpillBlock& block) const {
  // What is stored counts as its first touch; a block that has a page on SSD keeps its others
  // there too.
  return block.first_token < shallow_tokens_ || block.touches >= 1 || block.was_ghost ||
         block.pinned || !block.ssd_pages.empty();
}

std::vector<index::SpillBlock> TakeRefused(const AdmissionRule& rule,
                                           std::vector<index::SpillBlock>* blocks) {
  std::set<uint64_t> needed;  // serials of parents of admitted blocks
  const auto is_needed = [&](const index::SpillBlock& block) {
    return block.serials.own != 0 && needed.contains(block.serials.own);
  };
  std::vector<index::SpillBlock> admitted, refused;
  for (auto block = blocks->rbegin(); block != blocks->rend(); ++block) {
    const bool in = block->pages.empty() || is_needed(*block) || rule.Admits(*block);
    if (in) needed.insert(block->serials.parent);
    (in ? admitted : refused).push_back(std::move(*block));
  }
  std::ranges::reverse(admitted);
  *blocks = std::move(admitted);
  return refused;
}

}  // namespace prefixd::cache
