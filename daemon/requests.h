// Requests of the wire as the cache takes them, checked.
//
// Pure functions.
#pragma once
#include <vector>

#include "absl/status/statusor.h"

#include "cache/cache.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::daemon {

// Every item; none is read when one is bad.
absl::StatusOr<std::vector<cache::Request>> ReadItems(const v1::AcquireRequest& request);
absl::StatusOr<cache::ReserveRequest> ReadReserve(const v1::ReserveRequest& request);
cache::Released ReadReleased(const v1::Released& released);
absl::StatusOr<cache::CommitRequest> ReadCommit(const v1::CommitRequest& request);
// Borrows `page`.
absl::StatusOr<cache::PagePiece> ReadPiece(const v1::PageBytes& page);
void WritePiece(const cache::PagePiece& piece, v1::PageBytes* page);

}  // namespace prefixd::daemon
