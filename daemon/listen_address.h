// TCP addresses that the daemon may listen on, and the tenant of a connection.
//
// Pure functions.
#pragma once
#include <string>

#include "absl/status/statusor.h"

namespace prefixd::daemon {

struct ListenAddress {
  std::string host;  // numeric, without brackets
  int port = 0;      // 0 = any free one
  bool loopback = false;
};
// Parses "127.0.0.1:7777", "[::1]:7777" or "localhost:7777". InvalidArgument for other names: what
// they resolve to, and so whether it is loopback, can change.
absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text);

// Returns "127.0.0.1:7777" or "[::1]:7777".
std::string ToString(const ListenAddress& address);

// Returns the tenant of a gRPC peer ("unix:", "ipv4:127.0.0.1:4711", "ipv6:[::1]:4711"): "local" on
// this host, else "network".
std::string TenantOf(const std::string& peer);

}  // namespace prefixd::daemon
