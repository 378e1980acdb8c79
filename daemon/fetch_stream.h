// Fetch as a stream of raw messages: a few hand-made bytes and then the page's own bytes, borrowed
// from the leased extent. Nothing is copied on the way to the socket, wire-identical to FetchChunk.
#pragma once
#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/dispatch.h"

namespace prefixd::daemon {

// The reactor of one call; owned by itself until the call is done. `cache` and `dispatch` must
// outlive the server that runs it. One message of it waits to be written, beside what gRPC takes of
// a stream (wire/bulk_channel.h), and borrows its bytes; those of a page that had to be cut are
// copied, and the cache counts them as in flight until gRPC has taken them. A reader that takes
// nothing for StreamPatience::silence loses the stream. `address`:
// "unix:/run/prefixd.sock", where workers connect.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartFetch(cache::Cache* cache, Dispatch* dispatch,
                                                       const std::string& address,
                                                       grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer& request);

// One message: `header` by hand, then `piece.data`. With `hold` the data is borrowed and `hold`
// kept until gRPC lets it go, else it is copied.
grpc::ByteBuffer PieceMessage(const cache::PagePiece& piece, std::shared_ptr<const void> hold);

}  // namespace prefixd::daemon
