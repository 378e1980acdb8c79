#include "index/timeline.h"

#include <algorithm>
#include <iterator>

namespace prefixd::index {

void Timeline::Note(uint64_t number, int64_t now_us) {
  if (samples_.empty()) {
    first_ = number;
  } else if (now_us - samples_.back().at_us < kApartUs) {
    return;
  }
  if (samples_.size() >= kMostSamples) Thin();
  samples_.push_back({number - first_, now_us});
}

std::optional<Timeline::Interval> Timeline::Find(uint64_t number, uint64_t latest) const {
  const uint64_t since_first = number - first_;
  if (samples_.empty() || since_first > latest - first_) return std::nullopt;
  const auto after = std::ranges::upper_bound(samples_, since_first, {}, &Sample::since_first);
  const Sample& found = *std::prev(after);
  const uint64_t end = after == samples_.end() ? latest - first_ + 1 : after->since_first;
  return Interval{
      .first = first_ + found.since_first, .count = end - found.since_first, .at_us = found.at_us};
}

// Drops a sample if those beside it then stand no further apart than an eighth of the later one's
// age: what was drawn between them is older, and is dated by the earlier one. About 16 samples are
// left for each time that an age grows by e.
void Timeline::Thin() {
  const int64_t now = samples_.back().at_us;
  size_t kept = 1;
  for (size_t i = 1; i < samples_.size(); ++i) {
    const bool newest = i + 1 == samples_.size();
    const int64_t next = newest ? now : samples_[i + 1].at_us;
    if (newest || next - samples_[kept - 1].at_us > (now - next) / 8)
      samples_[kept++] = samples_[i];
  }
  samples_.resize(kept);
}

}  // namespace prefixd::index
