// What a service does for each RPC: deadline, latency, counters, absl::Status to grpc::Status.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"

#include "base/mutex.h"
#include "cache/cache.h"

namespace prefixd::daemon {

// Deadline of an RPC that has none of its own.
inline constexpr std::chrono::seconds kDefaultDeadline{60};
// The daemon waits no longer than this, however far away the caller's deadline is.
inline constexpr std::chrono::seconds kMaxWait{60};  // for one thing that a worker's call waits for
inline constexpr std::chrono::hours kMaxStream{1};   // for a whole stream of pages
inline constexpr std::chrono::hours kMaxAdmin{1};    // for a whole call of Admin

// Returns the caller's deadline, by default kDefaultDeadline from now; at most `longest` from now.
base::Deadline DeadlineOf(const grpc::ServerContextBase& context, std::chrono::seconds longest);
// The same for a deadline in gRPC's form, which may be of any year.
base::Deadline DeadlineOf(gpr_timespec deadline, std::chrono::seconds longest);

// The codes of both have the same numbers.
grpc::Status ToGrpc(const absl::Status& status);

// One call while it is handled. End counts it under "rpc.NAME" with its latency, and a refusal
// under "refused.WHY" and "rpc.NAME.refused.WHY".
class Call {
 public:
  Call(cache::Cache* cache, const char* name)
      : cache_(cache), name_(name), start_(std::chrono::steady_clock::now()) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  uint64_t elapsed_us() const;
  // Called once, last. Logs a refusal.
  grpc::Status End(const absl::Status& status);

 private:
  cache::Cache* const cache_;
  const char* const name_;
  const std::chrono::steady_clock::time_point start_;
};

}  // namespace prefixd::daemon
