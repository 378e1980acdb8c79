// How a Redis server, or a cluster of them, is reached. Redis, Valkey and others speak the
// protocol.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/clock.h"

namespace prefixd::remote {

struct Endpoint {
  std::string host;
  uint16_t port = 6379;
  auto operator<=>(const Endpoint&) const = default;
};
// Returns "10.0.0.3:6379", "[fd00::3]:6379".
std::string TextOf(const Endpoint& endpoint);

// What becomes of the servers, for a log: kBad wants to be seen to.
enum class News { kGood, kBad };
using Newspaper = std::function<void(News news, const std::string& line)>;

struct RedisOptions {
  std::vector<Endpoint> seeds;  // some of the servers
  bool tls = false;
  std::string user;                 // empty: the default user
  std::string password;             // empty: none is sent
  std::string ca_file;              // PEM; empty: the host's own certificates
  std::string cert_file, key_file;  // PEM; empty: no certificate of ours
  std::chrono::milliseconds connect_patience{2000};
  uint64_t node_bytes = uint64_t{4} << 20;    // on their way to or from one server
  uint64_t total_bytes = uint64_t{64} << 20;  // and all of them
  const base::Clock* clock = &base::SystemClock::Get();
  uint64_t seed = 0;  // of jitter
  Newspaper log;      // one line; from any thread, must not call back
};

// Reads "redis://HOST:PORT,HOST:PORT" or "rediss://...", with TLS. A port may be left out: 6379.
// InvalidArgument says what is wrong with anything else.
absl::StatusOr<RedisOptions> ParseRedisUrl(const std::string& url);

}  // namespace prefixd::remote
