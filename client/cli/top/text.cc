#include "client/cli/top/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

namespace prefixd::cli {
namespace {

struct Range {
  uint32_t first, last;
};
// Characters that take two columns, and those that take none (Unicode 15, by blocks).
constexpr Range kWide[] = {{0x1100, 0x115f},   {0x2329, 0x232a},   {0x2e80, 0x303e},
                           {0x3041, 0xa4cf},   {0xa960, 0xa97f},   {0xac00, 0xd7a3},
                           {0xf900, 0xfaff},   {0xfe10, 0xfe19},   {0xfe30, 0xfe6f},
                           {0xff00, 0xff60},   {0xffe0, 0xffe6},   {0x1f300, 0x1f64f},
                           {0x1f680, 0x1f6ff}, {0x1f900, 0x1faff}, {0x20000, 0x3fffd}};
constexpr Range kCombining[] = {{0x300, 0x36f},   {0x483, 0x489},   {0x591, 0x5bd},
                                {0x610, 0x61a},   {0x64b, 0x65f},   {0x1ab0, 0x1aff},
                                {0x1dc0, 0x1dff}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}};
// Characters that a terminal obeys, or that turn the direction of what follows.
constexpr Range kObeyed[] = {
    {0x0, 0x1f},      {0x7f, 0x9f},     {0xad, 0xad},     {0x200b, 0x200f}, {0x2028, 0x202e},
    {0x2060, 0x206f}, {0xd800, 0xdfff}, {0xfeff, 0xfeff}, {0xfff0, 0xfffb}, {0xe0000, 0xe0fff}};

template <size_t n>
bool In(const Range (&ranges)[n], uint32_t code) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [&](const Range& range) { return code >= range.first && code <= range.last; });
}

struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
  bool valid = false;
};

// Requires: `text` is not empty.
Character FirstOf(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {.code = first, .bytes = 1, .valid = true};
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return {};
  uint32_t code = first & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10ffff) return {};
  return {.code = code, .bytes = bytes, .valid = true};
}

size_t ColumnsOf(const Character& character) {
  if (!character.valid) return 1;
  if (In(kCombining, character.code)) return 0;
  return In(kWide, character.code) ? 2 : 1;
}

// Returns the longest beginning of `text` that takes at most `width` columns.
std::string_view Beginning(std::string_view text, size_t width) {
  size_t end = 0, columns = 0;
  while (end < text.size()) {
    const Character next = FirstOf(text.substr(end));
    if (columns + ColumnsOf(next) > width) break;
    columns += ColumnsOf(next);
    end += next.bytes;
  }
  return text.substr(0, end);
}

}  // namespace

std::string Shown(std::string_view text, bool utf8) {
  std::string shown;
  while (!text.empty()) {
    const Character next = FirstOf(text);
    const bool plain = next.valid && !In(kObeyed, next.code) && (utf8 || next.code < 0x80);
    plain ? shown.append(text.substr(0, next.bytes)) : shown.append("?");
    text.remove_prefix(next.bytes);
  }
  return shown;
}

size_t Columns(std::string_view text) {
  size_t columns = 0;
  while (!text.empty()) {
    const Character next = FirstOf(text);
    columns += ColumnsOf(next);
    text.remove_prefix(next.bytes);
  }
  return columns;
}

std::string Cut(std::string_view text, size_t width) {
  if (Columns(text) <= width) return std::string(text);
  if (width == 0) return "";
  return std::string(Beginning(text, width - 1)) + "~";
}

std::string Left(std::string_view text, size_t width) {
  std::string cut = Cut(text, width);
  return cut.append(width - Columns(cut), ' ');
}

std::string Right(std::string_view text, size_t width) {
  std::string cut = Cut(text, width);
  return cut.insert(0, width - Columns(cut), ' ');
}

}  // namespace prefixd::cli
