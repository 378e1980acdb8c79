// The JSON that scripts read: the daemon's reply with the names of proto/prefixd/v1/*.proto, one
// object for each command, and a few derived fields.
//
// All integers are numbers. (protobuf's own printer writes those of 64 bits as strings; jq compares
// those as text.) Ids, digests and other bytes are hexadecimal, as the tables and the log show
// them. Enum values are the words of the counters ("exact", "request_ended"). Counters, latencies
// and settings are objects with one member for each name. Fields are there also when they are zero.
//
// Pure functions. Every text is one line and ends with a newline.
#pragma once
#include <string>

#include "google/protobuf/message.h"

#include "client/cli/views.h"
#include "prefixd/v1/admin.pb.h"

namespace prefixd::cli {

// Returns a reply that needs nothing derived.
std::string ReplyJson(const google::protobuf::Message& reply);

// Adds `server` and `health` to what StatsJson returns.
std::string StatusJson(const StatusInput& input);
// Adds `p50_us`, `p90_us` and `p99_us` to every latency.
std::string StatsJson(const v1::GetStatsReply& stats);
// Puts the members of `stats` into the space itself and adds `compression_ratio`.
std::string SpacesJson(const v1::ListSpacesReply& reply);
// These add what was asked for: the space, the number of tokens, the time to live, the limits.
std::string MatchJson(const MatchInput& input);
std::string PinJson(const PinInput& input);
std::string LimitsJson(const v1::SetSpaceLimitsRequest& request,
                       const v1::SetSpaceLimitsReply& reply);

}  // namespace prefixd::cli
