// Checks a request's lists, texts and numbers as far as that is possible without the space.
// InvalidArgument says which field, what was seen and what the limit is. The cache checks group
// numbers and masks against the space.
//
// Pure functions.
#pragma once
#include "absl/status/status.h"

#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::wire {

absl::Status Check(const v1::AttachRequest& request);
absl::Status Check(const v1::NotSharedRequest& request);
// Checks items and releases. A request without items only releases.
absl::Status Check(const v1::AcquireRequest& request);
absl::Status Check(const v1::Released& released);
absl::Status Check(const v1::ReserveRequest& request);
// Staged pages come as columns of one length, and their offsets are aligned. The cache checks
// whether they stand inside the session's staging.
absl::Status Check(const v1::CommitRequest& request);
absl::Status Check(const v1::FetchRequest& request);
// ttl_ms is at most a hundred years.
absl::Status Check(const v1::PinRequest& request);

}  // namespace prefixd::wire
