// The gRPC server: both services, health, reflection, on a unix socket and, when asked, TCP. Beside
// the unix socket, when the arena is shared, the side socket that hands it out.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "cache/cache.h"
#include "daemon/config.h"

namespace prefixd::daemon {

struct ServerOptions {
  std::string socket;  // path; empty = none
  std::string listen;  // host:port, checked by LoadConfig; empty = none; port 0 = any
  int threads = 64;    // calls that wait, and streams of pages, at the same time
  std::string version = "0";
  std::vector<Setting> settings;  // for GetConfig
};

// Thread-safe. Serves from Start until Stop or destruction.
class Server {
 public:
  // `cache` must outlive the server. FailedPrecondition: a path or port that is in use or cannot be
  // made. InvalidArgument: a path longer than a unix socket's may be.
  static absl::StatusOr<std::unique_ptr<Server>> Start(cache::Cache* cache,
                                                       const ServerOptions& options);
  virtual ~Server() = default;

  // Of TCP; 0 without.
  virtual int port() const = 0;
  // Health says NOT_SERVING, sessions hear Draining, new sessions and reservations are refused;
  // everything else goes on.
  virtual void BeginDrain(uint32_t deadline_ms) = 0;
  // No Fetch, Put or Commit is running.
  virtual bool idle() const = 0;
  // Ends the sessions; calls in flight get a second.
  virtual void Stop() = 0;
};

}  // namespace prefixd::daemon
