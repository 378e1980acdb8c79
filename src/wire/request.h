// Reads requests: checks lists, texts and numbers as far as that is possible without the space.
// InvalidArgument says which field, what was seen and what the limit is. The cache checks group
// numbers and masks against the space.
//
// Pure functions, but for TakeItems.
#pragma once
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "block/request.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::wire {

absl::Status Check(const v1::AttachRequest& request);
absl::StatusOr<block::NotShared> FromProto(const v1::NotSharedRequest& request);

// Returns every item; none if the request only releases. Each one's tokens and content leave the
// message, which may be as long as a message can be. Returns an error, and no item, if an item is
// bad, or if the tokens and content of all take more than `most_bytes`.
absl::StatusOr<std::vector<block::Request>> TakeItems(v1::AcquireRequest* request,
                                                      uint64_t most_bytes);
// Returns the end of the items [begin, end) that are one set; begin + 1 if item `begin` is in none.
size_t EndOfSet(const v1::AcquireRequest& request, size_t begin);
// Returns the request for the plan that an item asked for in the same call.
block::ReserveRequest ReserveOf(const v1::AcquireRequest::Item& from, block::Request item);

using Releases = google::protobuf::RepeatedPtrField<v1::Released>;
absl::StatusOr<std::vector<block::Released>> FromProto(const Releases& releases);
absl::StatusOr<block::ReserveRequest> FromProto(const v1::ReserveRequest& request);
// Staged pages come as columns of one length, and their offsets are aligned. The cache checks
// whether they stand inside the session's staging.
absl::StatusOr<block::CommitRequest> FromProto(const v1::CommitRequest& request);
absl::StatusOr<block::FetchRequest> FromProto(const v1::FetchRequest& request);
// Reads the sequence of a pin. ttl_ms is at most a hundred years.
absl::StatusOr<block::Request> FromProto(const v1::PinRequest& request);

}  // namespace prefixd::wire
