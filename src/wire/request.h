// What can be said of a request's lists, texts and numbers without knowing the space.
// InvalidArgument says which field, what was seen, what the limit is; group numbers and masks are
// checked against the space by the cache.
//
// Pure functions.
#pragma once
#include "absl/status/status.h"

#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::wire {

absl::Status Check(const v1::AttachRequest& request);
absl::Status Check(const v1::NotSharedRequest& request);
// Items and releases; no item is a request that only releases.
absl::Status Check(const v1::AcquireRequest& request);
absl::Status Check(const v1::Released& released);
absl::Status Check(const v1::JoinRequest& request);
absl::Status Check(const v1::ReserveRequest& request);
// Staged pages come as columns of one length, their offsets are aligned; whether they stand inside
// the session's staging is the cache's to judge.
absl::Status Check(const v1::CommitRequest& request);
absl::Status Check(const v1::FetchRequest& request);
// Of Pin: a time of at most a hundred years.
absl::Status Check(const v1::PinRequest& request);

}  // namespace prefixd::wire
