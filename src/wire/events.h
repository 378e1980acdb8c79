// What WatchEvents sends.
//
// Pure functions.
#pragma once
#include "absl/status/statusor.h"

#include "block/events.h"
#include "prefixd/v1/admin.pb.h"

namespace prefixd::wire {

// Leaves out the epoch.
void ToProto(const block::EventBatch& batch, v1::WatchEventsReply* proto);
// `epoch`: of the index; a request that names another one begins anew. InvalidArgument: a space id
// that is none.
absl::StatusOr<block::EventQuery> FromProto(const v1::WatchEventsRequest& proto, uint64_t epoch);

}  // namespace prefixd::wire
