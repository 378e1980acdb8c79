// Fetch as a stream of raw messages: a few hand-made bytes and then the page's own bytes, borrowed
// from the leased extent. Nothing is copied on the way to the socket. Wire-identical to FetchChunk.
#pragma once

#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/dispatch.h"

namespace prefixd::daemon {

// Returns the reactor of one call, which owns itself, and keeps `charge`, until the call is done.
// `cache` and `dispatch` must outlive the server that runs it. At most one message waits to be
// written, beside what gRPC takes of a stream (wire/bulk_channel.h). The message borrows the page's
// bytes; those of a page that had to be cut are copied, and the cache counts them as in flight
// until gRPC has taken them. A reader that takes nothing for StreamPatience::silence loses the
// stream.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartFetch(cache::Cache* cache, Dispatch* dispatch,
                                                       std::shared_ptr<void> charge,
                                                       grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer& request);

}  // namespace prefixd::daemon
