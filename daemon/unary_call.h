// A unary call, from its message to the answer's. The message is parsed when its turn comes, which
// for a long one is not when it arrives.
#pragma once
#include "base/status.h"
#include "daemon/hand_out.h"
#include "daemon/message.h"

namespace prefixd::daemon {

// Owns itself until the call is done; not thread-safe.
template <typename Request, typename Reply>
class UnaryCall final : public HandOutCall {
 public:
  // `reply` belongs to gRPC, which sends it when the call ends well.
  UnaryCall(grpc::CallbackServerContext* context, cache::Cache* cache, base::Threads* later,
            grpc::ByteBuffer* reply)
      : HandOutCall(context, cache, later), to_(reply) {}

  // Parses and frees `message`. Called once, before the call is served.
  absl::Status Read(grpc::ByteBuffer* message) {
    PREFIXD_RETURN_IF_ERROR(Parse(message, &request_));
    if constexpr (requires { request_.session(); }) BelongsTo({request_.session()});
    return absl::OkStatus();
  }
  Request* request() { return &request_; }
  Reply* reply() { return &reply_; }

 private:
  grpc::Status WriteReply() override { return Write(reply_, to_); }

  grpc::ByteBuffer* const to_;
  Request request_;
  Reply reply_;
};

}  // namespace prefixd::daemon
