#include "cache/store/age_out_policy.h"

#include <algorithm>

namespace prefixd::cache {

void AgeOutPolicy::Written(const ssd::SegmentInfo& segment, int64_t stamp) {
  stamps_[segment.first_sequence] = stamp;
}

void AgeOutPolicy::Dropped(const ssd::SegmentInfo& segment) {
  stamps_.erase(segment.first_sequence);
}

void AgeOutPolicy::Spilled(uint64_t bytes, uint64_t budget_bytes) {
  const double most = static_cast<double>(budget_bytes) / 10;
  allowance_ = std::min(most, allowance_ + kRewriteShare * static_cast<double>(bytes));
}

uint64_t AgeOutPolicy::allowance_bytes() const {
  return allowance_ > 0 ? static_cast<uint64_t>(allowance_) : 0;
}

int64_t AgeOutPolicy::StampOf(const ssd::SegmentInfo& segment) const {
  const auto found = stamps_.find(segment.first_sequence);
  return found == stamps_.end() ? 0 : found->second;
}

size_t AgeOutPolicy::CountLeaving(std::span<const ssd::SegmentInfo> segments, uint64_t excess_bytes,
                                  uint64_t keep_after) {
  size_t count = 0;
  for (uint64_t freed = 0; freed < excess_bytes && count < segments.size(); ++count) {
    if (segments[count].last_sequence > keep_after) break;
    freed += segments[count].file_bytes;
  }
  return count;
}

index::RewriteOptions AgeOutPolicy::Choose(std::span<const ssd::SegmentInfo> segments,
                                           size_t leaving, uint64_t budget_bytes) const {
  index::RewriteOptions options{.first = segments.front().first_sequence,
                                .last = segments[leaving - 1].last_sequence,
                                .warm_after = StampOf(segments[leaving - 1])};
  uint64_t newer_bytes = 0;
  for (size_t i = segments.size(); i > 0 && newer_bytes < budget_bytes / 2; --i) {
    newer_bytes += segments[i - 1].file_bytes;
    options.hot_after = StampOf(segments[i - 1]);
  }
  options.hot_after = std::max(options.hot_after, options.warm_after);
  options.hot_bytes = allowance_bytes();
  // What the hot ones will need is not given away: only what is saved up beyond half of the most.
  const uint64_t kept = budget_bytes / 20;
  options.warm_bytes = options.hot_bytes > kept ? options.hot_bytes - kept : 0;
  return options;
}

index::RewriteOptions AgeOutPolicy::ChooseWithin(std::span<const ssd::SegmentInfo> segments,
                                                 size_t leaving, uint64_t bytes) const {
  const int64_t written = StampOf(segments[leaving - 1]);
  return {.first = segments.front().first_sequence,
          .last = segments[leaving - 1].last_sequence,
          .hot_after = written,
          .hot_bytes = bytes,
          .warm_after = written};
}

}  // namespace prefixd::cache
