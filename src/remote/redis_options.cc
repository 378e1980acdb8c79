#include "remote/redis_options.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/status.h"

namespace prefixd::remote {
namespace {

absl::Status Wrong(const std::string& text, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" ", what));
}

absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text) {
  Endpoint endpoint;
  std::string port;
  if (absl::StartsWith(text, "[")) {
    const size_t close = text.find(']');
    if (close == std::string::npos) return Wrong(text, "has no ] after the address");
    endpoint.host = text.substr(1, close - 1);
    port = text.substr(close + 1);
    if (!port.empty() && port[0] != ':') return Wrong(text, "has more than a port after the ]");
  } else {
    const size_t colon = text.find(':');
    if (colon != std::string::npos && text.find(':', colon + 1) != std::string::npos) {
      return Wrong(text, "is an IPv6 address: write it as [ADDRESS]:PORT");
    }
    endpoint.host = text.substr(0, colon);
    port = colon == std::string::npos ? "" : text.substr(colon);
  }
  if (endpoint.host.empty()) return Wrong(text, "names no host");
  uint32_t number = endpoint.port;
  if (!port.empty() &&
      (!absl::SimpleAtoi(port.substr(1), &number) || number == 0 || number > 65535)) {
    return Wrong(text, "has no port from 1 to 65535 behind the colon");
  }
  endpoint.port = static_cast<uint16_t>(number);
  return endpoint;
}

}  // namespace

std::string TextOf(const Endpoint& endpoint) {
  const bool six = endpoint.host.find(':') != std::string::npos;
  return absl::StrCat(six ? "[" : "", endpoint.host, six ? "]:" : ":", endpoint.port);
}

absl::StatusOr<RedisOptions> ParseRedisUrl(const std::string& url) {
  // First, as other errors repeat the URL.
  if (absl::StrContains(url, "@")) {
    return absl::InvalidArgumentError(
        "a URL with a user or password is seen by everybody on this host; say --remote-user and "
        "--remote-password-file");
  }
  RedisOptions options;
  absl::string_view rest = url;
  options.tls = absl::ConsumePrefix(&rest, "rediss://");
  if (!options.tls && !absl::ConsumePrefix(&rest, "redis://")) {
    return Wrong(url, "does not begin with redis:// or rediss:// (TLS)");
  }
  absl::ConsumeSuffix(&rest, "/");
  if (absl::StrContains(rest, "/")) {
    return Wrong(url, "names a database; a cluster has one, which is used");
  }
  for (const absl::string_view part : absl::StrSplit(rest, ',')) {
    PREFIXD_ASSIGN_OR_RETURN(Endpoint seed, ParseEndpoint(std::string(part)));
    options.seeds.push_back(std::move(seed));
  }
  return options;
}

}  // namespace prefixd::remote
