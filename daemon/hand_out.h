// What a call hands out (leases, reservations, a pin) belongs to the caller once it has the answer.
// If the caller gave up or the answer could not be sent, the daemon takes it back: nobody else
// knows of it.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"

#include "base/threads.h"
#include "cache/cache.h"
#include "daemon/inbound.h"
#include "daemon/tracing/call_trace.h"

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

  // Called before anything is added.
  void set_session(block::SessionId session) { session_ = session; }
  block::SessionId session() const { return session_; }
  void Add(block::LeaseId lease) {
    if (lease) leases_.push_back(lease);
  }
  void Add(block::ReservationId reservation) {
    if (reservation) reservations_.push_back(reservation);
  }
  void Add(block::PinId pin) {
    if (pin) pins_.push_back(pin);
  }
  bool empty() const { return leases_.empty() && reservations_.empty() && pins_.empty(); }
  // Takes everything back, once, and counts it in "handed_out.taken_back". Passes over what the
  // session has lost since.
  void TakeBack();

 private:
  cache::Cache* const cache_;
  block::SessionId session_;
  std::vector<block::LeaseId> leases_;
  std::vector<block::ReservationId> reservations_;
  std::vector<block::PinId> pins_;
};

// Names the call for which the cache does something.
struct Caller {
  HandOut* hand_out;
  const grpc::ServerContextBase* context;  // null: a direct call (direct_calls.h)
  CallTrace* trace;                        // null: not traced
  block::SessionId session() const { return hand_out->session(); }
};

// What a call asks for.
struct Asked {
  const char* verb = "";  // its counter: "rpc.match"
  uint64_t bytes = 0;     // memory that the request takes
  // A long request's share of the memory for long requests, held until the call is done. Null for a
  // short one. No callback thread serves a long request.
  std::shared_ptr<void> share = nullptr;
};

// The reactor of a unary call, which knows whether its caller is still there. Owns itself until the
// call is done.
class HandOutCall : public grpc::ServerUnaryReactor {
 public:
  // `later`: threads for work that must not run on gRPC's; must outlive the server.
  HandOutCall(grpc::CallbackServerContext* context, cache::Cache* cache, base::Threads* later)
      : context_(context), later_(later), hand_out_(cache) {}

  // For the thread that serves the call, before End.
  void BelongsTo(block::SessionId session) { hand_out_.set_session(session); }
  void Asks(Asked asked) { asked_ = std::move(asked); }
  const Asked& asked() const { return asked_; }
  void IsTraced(std::unique_ptr<CallTrace> trace) { trace_ = std::move(trace); }
  CallTrace* trace() { return trace_.get(); }  // null: not traced
  Caller caller() { return {&hand_out_, context_, trace_.get()}; }
  block::SessionId session() const { return hand_out_.session(); }
  std::string peer() const { return context_->peer(); }
  grpc::CallbackServerContext& context() const { return *context_; }
  HandOut* hand_out() { return &hand_out_; }
  const std::atomic<bool>* gave_up() const { return &gave_up_; }
  // Called once, last. On an error takes back what was handed out.
  void End(grpc::Status status);

  void OnCancel() override { gave_up_ = true; }
  void OnDone() override;

 private:
  // Writes the answer of a call that ends well.
  virtual grpc::Status WriteReply() { return grpc::Status::OK; }
  // OnCancel and OnDone take no time, so gRPC need not run them on a thread of its own.
  bool InternalInlineable() override { return true; }

  grpc::CallbackServerContext* const context_;
  const InboundCall counted_{context_->peer()};
  base::Threads* const later_;
  std::atomic<bool> gave_up_{false};
  Asked asked_;
  HandOut hand_out_;
  std::unique_ptr<CallTrace> trace_;
};

}  // namespace prefixd::daemon
