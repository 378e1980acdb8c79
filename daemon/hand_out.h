// What a call hands out - leases, reservations, a pin - is its caller's once it has the answer.
// What was handed out to a caller that gave up, or whose answer could not be sent, is taken back:
// nobody else knows of it.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
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
  explicit HandOut(cache::Cache* cache, block::SessionId session = {})
      : cache_(cache), session_(session) {}
  HandOut(const HandOut&) = delete;
  HandOut& operator=(const HandOut&) = delete;
  HandOut(HandOut&& other) noexcept
      : cache_(other.cache_),
        session_(other.session_),
        leases_(std::exchange(other.leases_, {})),
        reservations_(std::exchange(other.reservations_, {})),
        pins_(std::exchange(other.pins_, {})) {}

  // Before anything is added.
  void set_session(block::SessionId session) { session_ = session; }
  block::SessionId session() const { return session_; }
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
  block::SessionId session_;
  std::vector<block::LeaseId> leases_;
  std::vector<block::ReservationId> reservations_;
  std::vector<block::PinId> pins_;
};

// What a call asks for.
struct Asked {
  const char* verb = "";  // under which it is counted: "rpc.match"
  uint64_t bytes = 0;     // of memory that the request takes
  // Only a long request has it, which no callback thread serves: its share of the memory for such,
  // until the call is done.
  std::shared_ptr<void> share = nullptr;
};

// The reactor of a unary call: knows whether its caller is there. Owned by itself until the call is
// done.
class HandOutCall : public grpc::ServerUnaryReactor {
 public:
  // `later`: threads for what must not run on one of gRPC's; outlives the server.
  HandOutCall(grpc::CallbackServerContext* context, cache::Cache* cache, Threads* later)
      : context_(context), later_(later), hand_out_(cache) {}

  // For the thread that serves the call, before End.
  void BelongsTo(block::SessionId session) { hand_out_.set_session(session); }
  void Asks(Asked asked) { asked_ = std::move(asked); }
  const Asked& asked() const { return asked_; }
  block::SessionId session() const { return hand_out_.session(); }
  std::string peer() const { return context_->peer(); }
  grpc::CallbackServerContext& context() const { return *context_; }
  HandOut* hand_out() { return &hand_out_; }
  const std::atomic<bool>* gave_up() const { return &gave_up_; }
  // Once, last. With an error nothing stays handed out.
  void End(grpc::Status status);

  void OnCancel() override { gave_up_ = true; }
  void OnDone() override;

 private:
  // The answer of a call that ends well.
  virtual grpc::Status WriteReply() { return grpc::Status::OK; }
  // What OnCancel and OnDone do takes no time: gRPC need not hand them to a thread of its own.
  bool InternalInlineable() override { return true; }

  grpc::CallbackServerContext* const context_;
  Threads* const later_;
  std::atomic<bool> gave_up_{false};
  Asked asked_;
  HandOut hand_out_;
};

}  // namespace prefixd::daemon
