// What a daemon says of itself.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "prefixd/v1/admin.grpc.pb.h"

namespace prefixd::bench {

// One connection to a daemon's Admin service.
class DaemonStats {
 public:
  explicit DaemonStats(const std::string& address);  // of the workers' unix socket
  absl::StatusOr<v1::GetStatsReply> Get();
  absl::Status Clear();  // every space
  absl::Status Flush();

 private:
  std::unique_ptr<v1::Admin::Stub> stub_;
};

// A counter or accounted part by name, 0 when it is not there.
uint64_t CounterOf(const v1::GetStatsReply& stats, const std::string& name);
uint64_t RamPartOf(const v1::GetStatsReply& stats, const std::string& name);

}  // namespace prefixd::bench
