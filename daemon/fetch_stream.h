// Fetch as a stream of raw messages: a few hand-made bytes and then the page's own bytes, borrowed
// from the leased extent. Nothing is copied on the way to the socket. Wire-identical to FetchChunk.
#pragma once
#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/dispatch.h"

namespace prefixd::daemon {

// Returns the reactor of one call, which owns itself until the call is done. `cache` and `dispatch`
// must outlive the server that runs it. At most one message waits to be written, beside what gRPC
// takes of a stream (wire/bulk_channel.h). The message borrows the page's bytes; those of a page
// that had to be cut are copied, and the cache counts them as in flight until gRPC has taken them.
// A reader that takes nothing for StreamPatience::silence loses the stream. `address`:
// "unix:/run/prefixd.sock", where workers connect.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartFetch(cache::Cache* cache, Dispatch* dispatch,
                                                       const std::string& address,
                                                       grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer& request);

// Returns one message: a hand-made header, then `piece.data`. With `hold` it borrows the data, and
// keeps `hold` until gRPC is done with it; without `hold` it copies the data.
grpc::ByteBuffer PieceMessage(const cache::PagePiece& piece, std::shared_ptr<const void> hold);

}  // namespace prefixd::daemon
