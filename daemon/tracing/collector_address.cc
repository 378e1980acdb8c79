#include "daemon/tracing/collector_address.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

#include "base/status.h"

namespace prefixd::daemon {
namespace {

constexpr std::string_view kPlain = "http://", kTls = "https://";
constexpr uint16_t kPlainPort = 80, kTlsPort = 443;
constexpr char kTracesPath[] = "/v1/traces";
constexpr size_t kMostUrlBytes = 2048;

absl::Status Wrong(const std::string& url, const char* why) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", url, "\" ", why, "; it wants http://HOST:PORT/v1/traces or https://"));
}

// Cuts "host", "host:port" or "[::1]:port". Leaves the port as it is where none is named.
bool CutAuthority(const std::string& text, CollectorAddress* address) {
  size_t host_end = text.find(':');
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string::npos) return false;
    address->host = text.substr(1, close - 1);
    host_end = close + 1;
  } else {
    host_end = std::min(host_end, text.size());
    address->host = text.substr(0, host_end);
  }
  if (address->host.empty()) return false;
  if (host_end == text.size()) return true;
  int port = 0;
  if (text[host_end] != ':' || !absl::SimpleAtoi(text.substr(host_end + 1), &port)) return false;
  address->port = static_cast<uint16_t>(port);
  return port > 0 && port <= 65535;
}

std::string Get(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

}  // namespace

absl::StatusOr<CollectorAddress> ParseCollectorAddress(const std::string& url) {
  if (url.size() > kMostUrlBytes) return Wrong(url.substr(0, 64), "is longer than 2048 bytes");
  // A line break would begin another header, a fragment is never sent.
  const auto is_bad = [](char c) { return c <= 0x20 || c >= 0x7f || c == '#' || c == '"'; };
  CollectorAddress address{.tls = url.starts_with(kTls)};
  if ((!address.tls && !url.starts_with(kPlain)) || std::ranges::any_of(url, is_bad))
    return Wrong(url, "is no such URL");
  const size_t begin = address.tls ? kTls.size() : kPlain.size();
  const size_t end = std::min(url.find_first_of("/?", begin), url.size());
  const std::string authority = url.substr(begin, end - begin);
  if (authority.find('@') != std::string::npos)
    return Wrong(url, "names a user, which prefixd does not send");
  address.port = address.tls ? kTlsPort : kPlainPort;
  if (!CutAuthority(authority, &address)) return Wrong(url, "names no host and port");
  address.path = url.substr(end);
  if (address.path.empty() || address.path == "/") address.path = kTracesPath;
  if (address.path.starts_with('?')) address.path.insert(0, kTracesPath);
  return address;
}

std::string HostAndPort(const CollectorAddress& address) {
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  return is_ipv6 ? absl::StrCat("[", address.host, "]:", address.port)
                 : absl::StrCat(address.host, ":", address.port);
}

std::string ToString(const CollectorAddress& address) {
  return absl::StrCat(address.tls ? "https://" : "http://", HostAndPort(address), address.path);
}

std::string CollectorCaOfEnvironment(const std::map<std::string, std::string>& environment) {
  const std::string file = Get(environment, "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE");
  return file.empty() ? Get(environment, "OTEL_EXPORTER_OTLP_CERTIFICATE") : file;
}

std::string CollectorOfEnvironment(const std::map<std::string, std::string>& environment) {
  if (absl::AsciiStrToLower(Get(environment, "OTEL_SDK_DISABLED")) == "true") return "";
  std::string protocol = Get(environment, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL");
  if (protocol.empty()) protocol = Get(environment, "OTEL_EXPORTER_OTLP_PROTOCOL");
  if (!protocol.empty() && protocol != "http/protobuf") return "";
  std::string url = Get(environment, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
  if (!url.empty()) return url;
  url = Get(environment, "OTEL_EXPORTER_OTLP_ENDPOINT");
  if (url.empty()) return "";
  while (url.ends_with('/')) url.pop_back();
  return url + kTracesPath;
}

}  // namespace prefixd::daemon
