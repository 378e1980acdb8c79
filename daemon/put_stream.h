// Put as a stream of raw messages: the fields of a page are read in place, its bytes go from gRPC's
// receive buffers straight into the extent, hashed once on the way.
#pragma once
#include <functional>

#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/dispatch.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::daemon {

// Commits what a header asked for; what it returns is the call's.
using CommitCall = std::function<absl::Status(const v1::CommitRequest&, const cache::Patience&,
                                              HandOut*, v1::CommitReply*)>;

// The reactor of one call; owned by itself until the call is done. `cache` and `dispatch` must
// outlive the server that runs it. At most two messages are held: a third is read when the cache
// has taken one. A stream that fails, for whatever reason, abandons its reservation; one that is
// silent has no thread, and fails after StreamPatience::silence.
grpc::ServerReadReactor<grpc::ByteBuffer>* StartPut(cache::Cache* cache, Dispatch* dispatch,
                                                    grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* response, CommitCall commit);

}  // namespace prefixd::daemon
