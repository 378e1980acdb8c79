// Fetch as a stream of raw messages: a few hand-made bytes and then the page's own bytes, borrowed
// from the leased extent. Nothing is copied on the way to the socket, wire-identical to FetchChunk.
#pragma once
#include <memory>

#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/dispatch.h"

namespace prefixd::daemon {

// The reactor of one call; owned by itself until the call is done. `cache` and `dispatch` must
// outlive the server that runs it. At most eight messages of it wait to be written, beside what
// gRPC takes of a stream (wire/bulk_channel.h), and they borrow their bytes; those of a page that
// had to be cut are copied, wait alone, and the cache counts them as in flight until gRPC has taken
// them.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartFetch(cache::Cache* cache, Dispatch* dispatch,
                                                       grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer& request);

// One message: `header` by hand, then `piece.data`. With `hold` the data is borrowed and `hold`
// kept until gRPC lets it go, else it is copied.
grpc::ByteBuffer PieceMessage(const cache::PagePiece& piece, std::shared_ptr<const void> hold);

}  // namespace prefixd::daemon
