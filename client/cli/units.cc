#include "client/cli/units.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace prefixd::cli {
namespace {

constexpr uint64_t kBarCells = 20;

std::string Fixed(double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.1f %s", value, unit);
  return text;
}

// Returns the largest unit that is not zero and the next smaller one.
std::string TwoUnits(uint64_t seconds) {
  const uint64_t minutes = seconds / 60, hours = minutes / 60, days = hours / 24;
  if (days > 0) return absl::StrCat(days, " d ", hours % 24, " h");
  if (hours > 0) return absl::StrCat(hours, " h ", minutes % 60, " min");
  if (minutes > 0) return absl::StrCat(minutes, " min ", seconds % 60, " s");
  return absl::StrCat(seconds, " s");
}

}  // namespace

std::string CountText(uint64_t count) {
  std::string text = std::to_string(count);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string PercentText(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return Fixed(100.0 * static_cast<double>(part) / static_cast<double>(whole), "%");
}

std::string UptimeText(double seconds) {
  return TwoUnits(seconds > 0 ? static_cast<uint64_t>(seconds) : 0);
}

std::string SecondsText(double seconds) {
  if (std::abs(seconds) < 60) return Fixed(seconds, "s");
  return absl::StrCat(seconds < 0 ? "-" : "", TwoUnits(static_cast<uint64_t>(std::abs(seconds))));
}

std::string LatencyText(double us) {
  if (us >= 999'950) return Fixed(us * 1e-6, "s");
  if (us >= 999.5) return Fixed(us * 1e-3, "ms");
  return absl::StrCat(static_cast<uint64_t>(std::lround(us)), " us");
}

std::string BarText(uint64_t part, uint64_t whole) {
  uint64_t cells = 0;
  if (whole > 0) {
    const double share = static_cast<double>(part) / static_cast<double>(whole);
    cells = std::min(kBarCells, static_cast<uint64_t>(share * kBarCells + 0.5));
    if (part > 0) cells = std::max<uint64_t>(cells, 1);  // shows any part above 0
  }
  return absl::StrCat("[", std::string(cells, '#'), std::string(kBarCells - cells, '-'), "]");
}

std::string Plural(uint64_t count, const char* singular) {
  return absl::StrCat(CountText(count), " ", singular, count == 1 ? "" : "s");
}

std::string PrintableText(const std::string& text) {
  std::string printable = text;
  for (char& c : printable) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return printable;
}

}  // namespace prefixd::cli
