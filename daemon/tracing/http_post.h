// One HTTP/1.1 POST over a connection of its own.
//
// Thread-safe: no state but the threads that look up names, which are the process's.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "daemon/tracing/collector_address.h"
#include "daemon/tracing/stop_signal.h"
#include "remote/transport.h"

namespace prefixd::daemon {

// Where to, and what is said beside the body.
struct HttpServer {
  CollectorAddress address;
  std::string headers{};  // further ones, each with its line break
  // An https address needs it; null means plain TCP.
  std::shared_ptr<const remote::TlsContext> tls{};
};

struct HttpReply {
  int status = 0;
  std::optional<int> retry_after_s{};  // of Retry-After, where it is a number
  std::string body{};                  // at most 64 KiB; empty if it came in chunks
};

// Posts protobuf. Waits for the name's address, the connection and the answer until `deadline`, and
// no longer than `stop` allows. Unavailable says what failed; an answer of any status is none.
// Follows no redirect.
absl::StatusOr<HttpReply> PostProtobuf(const HttpServer& server, std::string_view body,
                                       base::Deadline deadline, const StopSignal& stop);

}  // namespace prefixd::daemon
