#include "daemon/token_door.h"

#include <memory>
#include <utility>

#include "daemon/call.h"

namespace prefixd::daemon {
namespace {

// A stream that ends before it begins.
template <typename Stream>
class RefusedCall final : public Stream {
 public:
  explicit RefusedCall(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

Sessions::Reactor* TokenDoor::Attach(Context* context, const Message* request) {
  const Gate::Admission caller = gate_->Check(*context, "PrefixCache.Attach");
  if (!caller.ok()) return new RefusedCall<Sessions::Reactor>(caller.status);
  absl::StatusOr<std::shared_ptr<Gate::Seat>> seat = gate_->TakeSeat(caller);
  if (!seat.ok()) return new RefusedCall<Sessions::Reactor>(ToGrpc(seat.status()));
  return inside_->AttachIn(*std::move(seat), context, request);
}

grpc::ServerReadReactor<TokenDoor::Message>* TokenDoor::Put(Context* context, Message* reply) {
  using Refused = RefusedCall<grpc::ServerReadReactor<Message>>;
  constexpr char kVerb[] = "PrefixCache.Put";
  const Gate::Admission caller = gate_->Check(*context, kVerb);
  if (!caller.ok()) return new Refused(caller.status);
  absl::StatusOr<std::shared_ptr<void>> charge =
      gate_->TakeStream(caller, kVerb, kPutBytesInFlight);
  if (!charge.ok()) return new Refused(ToGrpc(charge.status()));
  return inside_->PutIn(*std::move(charge), context, reply);
}

grpc::ServerWriteReactor<TokenDoor::Message>* TokenDoor::Fetch(Context* context,
                                                               const Message* request) {
  using Refused = RefusedCall<grpc::ServerWriteReactor<Message>>;
  constexpr char kVerb[] = "PrefixCache.Fetch";
  const Gate::Admission caller = gate_->Check(*context, kVerb);
  if (!caller.ok()) return new Refused(caller.status);
  absl::StatusOr<std::shared_ptr<void>> charge =
      gate_->TakeStream(caller, kVerb, kFetchBytesInFlight);
  if (!charge.ok()) return new Refused(ToGrpc(charge.status()));
  return inside_->FetchIn(*std::move(charge), context, request);
}

}  // namespace prefixd::daemon
