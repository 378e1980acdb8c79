// What prefixctl top is asked to show.
#pragma once
#include <chrono>
#include <cstddef>

namespace prefixd::cli {

// What the table of spaces is sorted by.
enum class SpaceOrder { kAsked, kHitRate, kTokens, kRam, kSsd, kModel };

struct TopRequest {
  bool once = false;  // print one frame
  std::chrono::milliseconds interval{1000};
  size_t width = 0;  // of the frame in columns
  SpaceOrder order = SpaceOrder::kAsked;
};

}  // namespace prefixd::cli
