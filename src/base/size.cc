#include "base/size.h"

#include <array>
#include <cstdio>
#include <cstdlib>

#include "base/status.h"

namespace prefixd::base {
namespace {

struct Unit {
  const char* name;
  double bytes;
};

constexpr std::array<Unit, 10> kUnits = {{{"", 1},
                                          {"B", 1},
                                          {"KiB", 1024.0},
                                          {"MiB", 1024.0 * 1024},
                                          {"GiB", 1024.0 * 1024 * 1024},
                                          {"TiB", 1024.0 * 1024 * 1024 * 1024},
                                          {"kB", 1e3},
                                          {"MB", 1e6},
                                          {"GB", 1e9},
                                          {"TB", 1e12}}};

}  // namespace

uint64_t Size::Of(uint64_t whole) const {
  if (percent <= 0) return bytes;
  return static_cast<uint64_t>(static_cast<double>(whole) * percent / 100.0);
}

absl::StatusOr<Size> ParseSize(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  // strtod also reads leading blanks, signs, "inf" and hexadecimal: a size begins with a digit.
  const bool digits = !text.empty() && text[0] >= '0' && text[0] <= '9' &&
                      text.compare(0, 2, "0x") != 0 && text.compare(0, 2, "0X") != 0;
  while (digits && *end == ' ') ++end;
  const std::string unit = digits ? std::string(end) : std::string();
  if (digits && unit == "%" && number <= 100) return Size{.percent = number};
  for (const Unit& known : kUnits) {
    if (digits && unit == known.name && number * known.bytes < 9e18) {
      return Size{.bytes = static_cast<uint64_t>(number * known.bytes)};
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "size: \"", text,
      "\" is not a number with B, KiB, MiB, GiB, TiB, kB, MB, GB, TB or % (at most 100%)"));
}

std::string FormatBytes(uint64_t bytes) {
  int unit = 0;
  double value = static_cast<double>(bytes);
  static constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value, kNames[unit]);
  return text;
}

std::string FormatExact(uint64_t bytes) {
  const Unit* best = &kUnits[0];
  for (const Unit& unit : kUnits) {
    const auto size = static_cast<uint64_t>(unit.bytes);
    if (bytes > 0 && bytes % size == 0 && unit.bytes > best->bytes) best = &unit;
  }
  return absl::StrCat(bytes / static_cast<uint64_t>(best->bytes), best->name);
}

}  // namespace prefixd::base
