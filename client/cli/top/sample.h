// What prefixctl top asks a daemon for, once an interval.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"

#include "prefixd/v1/admin.pb.h"

namespace prefixd::cli {

struct Sample {
  std::chrono::duration<double> at{0};  // of a clock that never goes back
  std::string health{};                 // what DaemonCalls::Health returns
  v1::GetStatsReply stats{};
  // Unset where this user may not ask for them.
  std::map<uint64_t, v1::ListSessionsReply::Session> sessions{};  // by their names
  std::vector<v1::ListLeasesReply::Lease> leases{};
  v1::ListPrefixesReply prefixes{};  // asked for less often
};

}  // namespace prefixd::cli
