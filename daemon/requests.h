// Requests of the wire as the cache takes them, checked.
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

// Every item, whose tokens and content leave the message: it may be as long as a message can be.
// None is to be used when one is bad.
absl::StatusOr<std::vector<cache::Request>> TakeItems(v1::AcquireRequest* request,
                                                      const MessageLimit& limit);
// The items of [begin, ...) that are one set with it; only itself when it is in none.
size_t EndOfSet(const v1::AcquireRequest& request, size_t begin);
// The plan that an item asked for in the same call. InvalidArgument for an item that continues a
// lease: a plan needs every token.
absl::StatusOr<cache::ReserveRequest> ReserveOf(const v1::AcquireRequest::Item& from,
                                                cache::Request item);
absl::StatusOr<cache::ReserveRequest> ReadReserve(const v1::ReserveRequest& request);
// Of Pin and Unpin.
absl::StatusOr<cache::Request> ReadSequence(const v1::Sequence& from);
cache::Released ReadReleased(const v1::Released& released);
absl::StatusOr<cache::CommitRequest> ReadCommit(const v1::CommitRequest& request);
cache::FetchRequest ReadFetch(const v1::FetchRequest& request);
// Without its data.
cache::PagePiece ReadPiece(const wire::PieceHeader& header);
wire::PieceHeader HeaderOf(const cache::PagePiece& piece);

}  // namespace prefixd::daemon
