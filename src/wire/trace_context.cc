#include "wire/trace_context.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/status.h"

namespace prefixd::wire {
namespace {

constexpr size_t kVersionDigits = 2, kTraceDigits = 32, kSpanDigits = 16, kFlagsDigits = 2;
constexpr size_t kTraceAt = kVersionDigits + 1;
constexpr size_t kSpanAt = kTraceAt + kTraceDigits + 1;
constexpr size_t kFlagsAt = kSpanAt + kSpanDigits + 1;
constexpr size_t kLength = kFlagsAt + kFlagsDigits;
constexpr size_t kMostMembers = 32;
constexpr size_t kMostKeyBytes = 256, kMostValueBytes = 256;

bool IsLowerHex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool ReadId(std::string_view digits, std::span<std::byte> id) {
  return IsLowerHex(digits) && base::FromHex(digits, id) &&
         std::ranges::any_of(id, [](std::byte byte) { return byte != std::byte{0}; });
}

bool IsKey(std::string_view key) {
  const auto first = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !key.empty() && key.size() <= kMostKeyBytes && first(key.front()) &&
         std::ranges::all_of(key, [&](char c) {
           return first(c) || std::string_view("_-*/@").find(c) != std::string_view::npos;
         });
}

bool IsValue(std::string_view value) {
  return !value.empty() && value.size() <= kMostValueBytes && value.back() != ' ' &&
         std::ranges::all_of(value,
                             [](char c) { return c >= 0x20 && c <= 0x7e && c != ',' && c != '='; });
}

std::string_view WithoutSpaces(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view text) {
  if (text.size() < kLength) return std::nullopt;
  const std::string_view version = text.substr(0, kVersionDigits);
  if (!IsLowerHex(version) || version == "ff") return std::nullopt;
  if (text.size() > kLength && (version == "00" || text[kLength] != '-')) return std::nullopt;
  for (const size_t dash : {kTraceAt - 1, kSpanAt - 1, kFlagsAt - 1}) {
    if (text[dash] != '-') return std::nullopt;
  }
  TraceContext context;
  std::array<std::byte, 1> flags{};
  const std::string_view flag_digits = text.substr(kFlagsAt, kFlagsDigits);
  if (!ReadId(text.substr(kTraceAt, kTraceDigits), context.trace_id) ||
      !ReadId(text.substr(kSpanAt, kSpanDigits), context.span_id) || !IsLowerHex(flag_digits) ||
      !base::FromHex(flag_digits, flags)) {
    return std::nullopt;
  }
  context.sampled = (flags[0] & std::byte{1}) != std::byte{0};
  return context;
}

bool IsTracestate(std::string_view text) {
  if (text.size() > kMostStateBytes) return false;
  size_t members = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view member = WithoutSpaces(text.substr(begin, end - begin));
    begin = end + 1;
    if (member.empty()) continue;  // allowed between commas
    const size_t equals = member.find('=');
    if (equals == std::string_view::npos || !IsKey(member.substr(0, equals)) ||
        !IsValue(member.substr(equals + 1)) || ++members > kMostMembers) {
      return false;
    }
  }
  return members > 0;
}

std::string Traceparent(const TraceContext& context) {
  return absl::StrCat("00-", base::ToHex(context.trace_id), "-", base::ToHex(context.span_id),
                      context.sampled ? "-01" : "-00");
}

}  // namespace prefixd::wire
