// Checks requests of the wire and turns them into those that the cache takes.
//
// Pure functions, but for TakeItems.
#pragma once
#include <vector>

#include "absl/status/statusor.h"

#include "cache/cache.h"
#include "daemon/message.h"
#include "prefixd/v1/prefix_cache.pb.h"
#include "wire/page.h"

namespace prefixd::daemon {

// Returns every item. Each one's tokens and content leave the message, which may be as long as a
// message can be. Returns an error, and no item, if one is bad. InvalidArgument if the tokens and
// content of all take more than `limit.unfolded_bytes`.
absl::StatusOr<std::vector<cache::Request>> TakeItems(v1::AcquireRequest* request,
                                                      const MessageLimit& limit);
// Returns the end of the items [begin, end) that are one set; begin + 1 if item `begin` is in none.
size_t EndOfSet(const v1::AcquireRequest& request, size_t begin);
// Returns the request for the plan that an item asked for in the same call.
cache::ReserveRequest ReserveOf(const v1::AcquireRequest::Item& from, cache::Request item);
absl::StatusOr<cache::ReserveRequest> ReadReserve(const v1::ReserveRequest& request);
// Reads the sequence of Pin and Unpin.
absl::StatusOr<cache::Request> ReadSequence(const v1::Sequence& from);
cache::Released ReadReleased(const v1::Released& released);
absl::StatusOr<cache::CommitRequest> ReadCommit(const v1::CommitRequest& request);
cache::FetchRequest ReadFetch(const v1::FetchRequest& request);
// Returns the piece without its data.
cache::PagePiece ReadPiece(const wire::PieceHeader& header);
wire::PieceHeader HeaderOf(const cache::PagePiece& piece);

}  // namespace prefixd::daemon
