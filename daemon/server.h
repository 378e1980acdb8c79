// The gRPC servers, each with health and reflection: for workers, on a unix socket; for people and
// scripts, on another one; and, if configured, for workers on TCP, who need a token. If the arena
// is shared, the side socket beside the workers' socket hands it out.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "cache/cache.h"
#include "daemon/config.h"
#include "daemon/socket_guard.h"
#include "daemon/stream_limit.h"
#include "daemon/tls.h"
#include "daemon/token.h"
#include "daemon/tracing/tracer.h"
#include "wire/limits.h"

namespace prefixd::daemon {

struct ServerOptions {
  std::string socket;        // path; empty = none
  std::string admin_socket;  // path; empty = none
  // The group that may connect there beside the daemon's user and root; nullopt = none.
  std::optional<gid_t> admin_group = {};
  std::string listen;               // host:port, checked by LoadConfig; empty = none; port 0 = any
  std::optional<Token> token = {};  // what callers on TCP must send; without it there is no TCP
  TlsFiles tls = {};                // of TCP
  std::string access_file = {};     // path; empty = none (access/gate.h)
  std::string audit_log = {};       // path; empty = the log only
  int threads = 64;                 // of one session: waiting calls of a kind, or streams of pages
  StreamPatience streams = {};
  int max_sessions = 512;
  uint64_t token_message_bytes = wire::TokenMessageBytes(~uint64_t{0});  // largest message
  // Bytes that workers may have sent of messages that are not whole; on the unix socket at least
  // one of the largest. TCP has a half if it is served, but at least one of the largest and 8 MiB.
  // Beyond that, on the unix socket the connection that has most is cut (inbound.h), on TCP gRPC
  // cancels calls of somebody there.
  uint64_t message_bytes = uint64_t{96} << 20;
  std::chrono::microseconds slow_request{0};  // longer lookups and commits are warned of; 0: none
  Tracer* tracer = nullptr;                   // must outlive the server; null: no call is traced
  std::string version = "0";
  std::vector<Setting> settings;  // for GetConfig
};

// The paths of a server, claimed before its cache is opened; what is not claimed, Start claims.
struct ServerClaims {
  std::optional<SocketGuard> socket, admin_socket;
};

// Thread-safe. Serves from Start until Stop or destruction.
class Server {
 public:
  // `cache` must outlive the server. FailedPrecondition: a path or port that is in use or cannot be
  // made, a group that the daemon cannot give its socket to. InvalidArgument: a path longer than a
  // unix socket's may be, TCP without a token,
  // an access file that cannot be used.
  static absl::StatusOr<std::unique_ptr<Server>> Start(cache::Cache* cache,
                                                       const ServerOptions& options,
                                                       ServerClaims claims = {});
  virtual ~Server() = default;

  // Returns the port of TCP; 0 without TCP.
  virtual int port() const = 0;
  // Returns "serving", "loading" (the index is not whole yet) or "draining".
  virtual std::string health() const = 0;
  // Returns what GetConfig tells.
  virtual std::vector<Setting> settings() const = 0;
  // Makes health say SERVING of prefixd.v1.PrefixCache too: the index is whole. Before, only of the
  // server and of Admin. Nothing after BeginDrain.
  virtual void SayLoaded() = 0;
  // Makes health say NOT_SERVING, sends Draining to sessions, and refuses new sessions and
  // reservations; everything else goes on.
  virtual void BeginDrain(uint32_t deadline_ms) = 0;
  // Returns true if no Fetch, Put or Commit is running. Streams that StreamPatience calls silent do
  // not count.
  virtual bool idle() const = 0;
  // Ends the sessions; calls in flight get a second.
  virtual void Stop() = 0;
};

}  // namespace prefixd::daemon
