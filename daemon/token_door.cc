#include "daemon/token_door.h"

#include <memory>
#include <utility>

namespace prefixd::daemon {
namespace {

// A stream that ends before it begins.
template <typename Stream>
class Refusal final : public Stream {
 public:
  explicit Refusal(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

Sessions::Reactor* TokenDoor::Attach(Context* context, const Message* request) {
  grpc::Status status = gate_->Check(*context, "PrefixCache.Attach");
  std::shared_ptr<void> seat;
  if (status.ok()) seat = gate_->TakeSeat(*context, &status);
  if (!status.ok()) return new Refusal<Sessions::Reactor>(status);
  return inside_->AttachIn(std::move(seat), context, request);
}

grpc::ServerReadReactor<TokenDoor::Message>* TokenDoor::Put(Context* context, Message* reply) {
  const grpc::Status status = gate_->Check(*context, "PrefixCache.Put");
  if (!status.ok()) return new Refusal<grpc::ServerReadReactor<Message>>(status);
  return inside_->Put(context, reply);
}

grpc::ServerWriteReactor<TokenDoor::Message>* TokenDoor::Fetch(Context* context,
                                                               const Message* request) {
  const grpc::Status status = gate_->Check(*context, "PrefixCache.Fetch");
  if (!status.ok()) return new Refusal<grpc::ServerWriteReactor<Message>>(status);
  return inside_->Fetch(context, request);
}

}  // namespace prefixd::daemon
