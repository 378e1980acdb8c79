#include "daemon/tracing/collector_headers.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

#include "base/status.h"

namespace prefixd::daemon {
namespace {

constexpr size_t kMostHeaderBytes = 8192;
constexpr const char* kOwn[] = {"Host",
                                "User-Agent",
                                "Content-Type",
                                "Content-Length",
                                "Content-Encoding",
                                "Transfer-Encoding",
                                "Connection",
                                "Expect",
                                "Upgrade",
                                "TE",
                                "Trailer"};

absl::Status Wrong(size_t number, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat("header ", number, " ", why));
}

bool IsName(std::string_view text) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           kOthers.find(c) != std::string_view::npos;
  });
}

// A line break would begin another header.
bool IsValue(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c == '\t' || (c >= 0x20 && c < 0x7f); });
}

// number: of the header, for people; from 1 on.
absl::Status Append(size_t number, std::string_view name, std::string_view value,
                    std::string* headers) {
  if (!IsName(name)) return Wrong(number, "has no valid name");
  const bool is_own = std::ranges::any_of(kOwn, [&](const char* own) {
    return absl::EqualsIgnoreCase(own, {name.data(), name.size()});
  });
  if (is_own) return Wrong(number, "is one that prefixd sends itself");
  if (!IsValue(value)) return Wrong(number, "has a value with other than printable ASCII");
  absl::StrAppend(headers, std::string(name), ": ", std::string(value), "\r\n");
  if (headers->size() > kMostHeaderBytes)
    return Wrong(number, "makes them longer than 8192 bytes together");
  return absl::OkStatus();
}

std::string Trimmed(std::string_view text) {
  return std::string(absl::StripAsciiWhitespace({text.data(), text.size()}));
}

// Decodes %XX. False: something else follows a '%'.
bool DecodePercents(const std::string& text, std::string* out) {
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      *out += text[at];
      continue;
    }
    if (at + 2 >= text.size()) return false;
    const char* const end = text.data() + at + 3;
    uint8_t byte = 0;
    const std::from_chars_result read = std::from_chars(end - 2, end, byte, 16);
    if (read.ec != std::errc() || read.ptr != end) return false;
    *out += static_cast<char>(byte);
    at += 2;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::string> ParseCollectorHeaders(const std::string& text) {
  std::string headers;
  size_t number = 0;
  for (const std::string& whole : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    const std::string line = Trimmed(whole);
    if (line.empty() || line[0] == '#') continue;
    ++number;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) return Wrong(number, "is no \"Name: value\"");
    PREFIXD_RETURN_IF_ERROR(
        Append(number, line.substr(0, colon), Trimmed(line.substr(colon + 1)), &headers));
  }
  return headers;
}

absl::StatusOr<std::string> CollectorHeadersOfEnvironment(
    const std::map<std::string, std::string>& environment) {
  std::string text;
  for (const char* name : {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"}) {
    const auto found = environment.find(name);
    if (found != environment.end() && text.empty()) text = found->second;
  }
  std::string headers;
  size_t number = 0;
  for (const std::string& whole : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::string pair = Trimmed(whole);
    if (pair.empty()) continue;
    ++number;
    const size_t equals = pair.find('=');
    std::string value;
    if (equals == std::string::npos) return Wrong(number, "is no name=value");
    if (!DecodePercents(Trimmed(pair.substr(equals + 1)), &value))
      return Wrong(number, "has a '%' without two hex digits");
    PREFIXD_RETURN_IF_ERROR(Append(number, Trimmed(pair.substr(0, equals)), value, &headers));
  }
  return headers;
}

}  // namespace prefixd::daemon
