#include "client/cli/top/chart.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace prefixd::cli {
namespace {

// From the lowest to a full cell.
constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr const char* kMarks[] = {".", ":", "#"};

std::span<const char* const> Levels(bool utf8) {
  return utf8 ? std::span<const char* const>(kBlocks) : std::span<const char* const>(kMarks);
}

}  // namespace

std::string Bar(double share, size_t width, bool utf8) {
  const size_t cells = width - 2;
  auto full =
      static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(cells)));
  if (share > 0) full = std::max<size_t>(full, 1);
  if (share < 1 && full == cells) --full;
  std::string bar = "[";
  for (size_t i = 0; i < cells; ++i) bar += i < full ? (utf8 ? "█" : "#") : (utf8 ? "░" : "-");
  return bar + "]";
}

std::vector<std::string> Chart(const std::vector<double>& values, size_t height, bool utf8) {
  const std::span<const char* const> levels = Levels(utf8);
  std::vector<std::string> lines(height);
  for (const double value : values) {
    const double steps = std::clamp(value, 0.0, 1.0) * static_cast<double>(height * levels.size());
    const size_t high =
        value < 0 ? 0 : std::max<size_t>(1, static_cast<size_t>(std::lround(steps)));
    for (size_t line = 0; line < height; ++line) {
      const size_t below = (height - 1 - line) * levels.size();
      if (high <= below) {
        lines[line] += " ";
      } else {
        lines[line] += levels[std::min(high - below, levels.size()) - 1];
      }
    }
  }
  return lines;
}

}  // namespace prefixd::cli
