// What a call hands out - leases, reservations, a pin - is its caller's once it has the answer.
// What was handed out to a caller that gave up, or whose answer could not be sent, is taken back:
// nobody else knows of it.
#pragma once
#include <atomic>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/threads.h"

namespace prefixd::daemon {

// Belongs to one call; not thread-safe.
class HandOut {
 public:
  // `cache` must outlive this.
  HandOut(cache::Cache* cache, block::SessionId session) : cache_(cache), session_(session) {}
  HandOut(const HandOut&) = delete;
  HandOut& operator=(const HandOut&) = delete;
  HandOut(HandOut&& other) noexcept
      : cache_(other.cache_),
        session_(other.session_),
        leases_(std::exchange(other.leases_, {})),
        reservations_(std::exchange(other.reservations_, {})),
        pins_(std::exchange(other.pins_, {})) {}

  // A continued lease was the caller's before and stays it.
  void Add(block::LeaseId lease, block::LeaseId continued = {}) {
    if (lease && lease != continued) leases_.push_back(lease);
  }
  void Add(block::ReservationId reservation) {
    if (reservation) reservations_.push_back(reservation);
  }
  void Add(block::PinId pin) {
    if (pin) pins_.push_back(pin);
  }
  bool empty() const { return leases_.empty() && reservations_.empty() && pins_.empty(); }
  // Once; counts "handed_out.taken_back". What the session lost since is passed over.
  void TakeBack();

 private:
  cache::Cache* const cache_;
  const block::SessionId session_;
  std::vector<block::LeaseId> leases_;
  std::vector<block::ReservationId> reservations_;
  std::vector<block::PinId> pins_;
};

// The reactor of a unary call that hands something out, or waits: knows whether its caller is
// there. Owned by itself until the call is done.
class HandOutCall final : public grpc::ServerUnaryReactor {
 public:
  // `later`: threads for what must not run on one of gRPC's; outlives the server.
  HandOutCall(grpc::CallbackServerContext* context, cache::Cache* cache, Threads* later,
              block::SessionId session)
      : context_(context), later_(later), hand_out_(cache, session) {}

  // For the thread that serves the call, before End.
  HandOut* hand_out() { return &hand_out_; }
  const std::atomic<bool>* gave_up() const { return &gave_up_; }
  // Once, last. With an error nothing stays handed out.
  void End(const grpc::Status& status);

  void OnCancel() override { gave_up_ = true; }
  void OnDone() override;

 private:
  // What OnCancel and OnDone do takes no time: gRPC need not hand them to a thread of its own.
  bool InternalInlineable() override { return true; }

  grpc::CallbackServerContext* const context_;
  Threads* const later_;
  std::atomic<bool> gave_up_{false};
  HandOut hand_out_;
};

}  // namespace prefixd::daemon
