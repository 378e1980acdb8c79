#include "cache/write_budget.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

void WriteBudget::SaveUpTo(uint64_t bytes) {
  const auto most = static_cast<double>(bytes);
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

}  // namespace prefixd::cache
