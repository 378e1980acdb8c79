#include "daemon/hand_out.h"

#include <memory>

namespace prefixd::daemon {

void HandOut::TakeBack() {
  if (empty()) return;
  cache_->Count("handed_out.taken_back", leases_.size() + reservations_.size() + pins_.size());
  for (const block::LeaseId lease : std::exchange(leases_, {}))
    cache_->Release(session_, {.lease = lease}).IgnoreError();
  for (const block::ReservationId id : std::exchange(reservations_, {}))
    cache_->Abandon(session_, id).IgnoreError();
  for (const block::PinId pin : std::exchange(pins_, {})) cache_->Unpin(pin).status().IgnoreError();
}

void HandOutCall::End(grpc::Status status) {
  if (status.ok() && gave_up_) status = {grpc::StatusCode::CANCELLED, "the caller stopped waiting"};
  if (status.ok()) status = WriteReply();
  if (!status.ok()) hand_out_.TakeBack();
  if (trace_ != nullptr) trace_->End(status);
  Finish(status);
}

// gRPC says "cancelled" if the answer was not sent: then the caller cannot know what it got. What
// an answer that was sent but not read hands out stays the caller's as long as its session lives.
void HandOutCall::OnDone() {
  if (context_->IsCancelled() && !hand_out_.empty()) {
    later_->Post([taken = std::make_shared<HandOut>(std::move(hand_out_))] { taken->TakeBack(); });
  }
  delete this;
}

}  // namespace prefixd::daemon
