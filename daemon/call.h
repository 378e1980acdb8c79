// One RPC on its way through a service: its deadline, its time, its count, and absl::Status on one
// side of the door, grpc::Status on the other.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"

#include "base/mutex.h"
#include "cache/cache.h"

namespace prefixd::daemon {

// Without a deadline of its own an RPC has this long.
inline constexpr std::chrono::seconds kDefaultDeadline{60};
// No deadline of a caller makes the daemon wait longer than this: for one thing that a worker's
// call waits for; for a stream of pages, or a call of Admin, as a whole.
inline constexpr std::chrono::seconds kMaxWait{60};
inline constexpr std::chrono::hours kMaxStream{1};
inline constexpr std::chrono::hours kMaxAdmin{1};

// `longest` from now, or sooner where the caller said so.
base::Deadline DeadlineOf(const grpc::ServerContextBase& context, std::chrono::seconds longest);
// The same of a deadline as gRPC has it, of any year.
base::Deadline DeadlineOf(gpr_timespec deadline, std::chrono::seconds longest);

// Where the caller's thread is and stays, when it named that and is on this host.
std::optional<int> CallerCpu(const grpc::ServerContextBase& context);

// Both have the same codes by number.
grpc::Status ToGrpc(const absl::Status& status);

// On the stack of a handler. Counts the call under "rpc.NAME" with its latency when it ends, and a
// refusal under "refused.WHY".
class Call {
 public:
  Call(cache::Cache* cache, const char* name)
      : cache_(cache), name_(name), start_(std::chrono::steady_clock::now()) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  uint64_t elapsed_us() const;
  // Once, last.
  grpc::Status End(const absl::Status& status);

 private:
  cache::Cache* const cache_;
  const char* const name_;
  const std::chrono::steady_clock::time_point start_;
};

}  // namespace prefixd::daemon
