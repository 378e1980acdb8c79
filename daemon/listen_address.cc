#include "daemon/listen_address.h"

#include <arpa/inet.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace prefixd::daemon {
namespace {

// Returns false if `host` is not a numeric address.
bool ReadHost(const std::string& host, bool* loopback) {
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    *loopback = (ntohl(v4.s_addr) >> 24) == 127;
    return true;
  }
  if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) {
    *loopback = IN6_IS_ADDR_LOOPBACK(&v6) != 0;
    return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text) {
  ListenAddress address;
  const size_t colon = text.rfind(':');
  const bool port = colon != std::string::npos &&
                    absl::SimpleAtoi(text.substr(colon + 1), &address.port) && address.port >= 0 &&
                    address.port <= 65535;
  address.host = port ? text.substr(0, colon) : "";
  if (address.host == "localhost") address.host = "127.0.0.1";
  if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  if (!port || !ReadHost(address.host, &address.loopback)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is not a numeric HOST:PORT like 127.0.0.1:7777 or [::1]:7777"));
  }
  return address;
}

std::string ToString(const ListenAddress& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return absl::StrCat(v6 ? "[" : "", address.host, v6 ? "]:" : ":", address.port);
}

std::string TenantOf(const std::string& peer) {
  const std::string plain = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  const bool local = absl::StartsWith(plain, "unix:") || absl::StartsWith(plain, "ipv4:127.") ||
                     absl::StartsWith(plain, "ipv6:[::1]:");
  return local ? "local" : "network";
}

}  // namespace prefixd::daemon
