#include "daemon/token_door.h"

namespace prefixd::daemon {
namespace {

// A stream that ends before it began.
template <typename Stream>
class Refusal final : public Stream {
 public:
  explicit Refusal(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

Sessions::Reactor* TokenDoor::Attach(Context* context, const v1::AttachRequest* request) {
  const grpc::Status status = CheckToken(token_, *context);
  if (!status.ok()) return new Refusal<Sessions::Reactor>(status);
  return inside_->Attach(context, request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* TokenDoor::Put(Context* context,
                                                          grpc::ByteBuffer* reply) {
  const grpc::Status status = CheckToken(token_, *context);
  if (!status.ok()) return new Refusal<grpc::ServerReadReactor<grpc::ByteBuffer>>(status);
  return inside_->Put(context, reply);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* TokenDoor::Fetch(Context* context,
                                                             const grpc::ByteBuffer* request) {
  const grpc::Status status = CheckToken(token_, *context);
  if (!status.ok()) return new Refusal<grpc::ServerWriteReactor<grpc::ByteBuffer>>(status);
  return inside_->Fetch(context, request);
}

}  // namespace prefixd::daemon
