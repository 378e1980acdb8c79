// Put as a stream of raw messages. The daemon reads the fields of a page in place and copies its
// bytes from gRPC's receive buffers straight into the extent; it hashes them once on the way.
#pragma once
#include <functional>

#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/dispatch.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::daemon {

// Commits what a header asked for. The status that it returns is that of the call.
using CommitCall = std::function<absl::Status(const v1::CommitRequest&, const cache::Patience&,
                                              const Caller&, v1::CommitReply*)>;

// Returns the reactor of one call, which owns itself, and keeps `charge`, until the call is done.
// `cache` and `dispatch` must outlive the server that runs it. At most two messages wait for the
// cache: the next is read when the stream's thread has taken one of them. A stream that fails, for
// whatever reason, abandons its reservation. A silent stream has no thread, and fails after
// StreamPatience::silence.
grpc::ServerReadReactor<grpc::ByteBuffer>* StartPut(cache::Cache* cache, Dispatch* dispatch,
                                                    std::shared_ptr<void> charge,
                                                    grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* response, CommitCall commit);

}  // namespace prefixd::daemon
