// The calls that a worker makes: each is FromProto, Cache, ToProto. Nothing is decided here.
//
// Thread-safe. Calls run as callback reactors, where Dispatch places them. gRPC parses no message:
// it would do so before anybody has looked at its size, and on the threads that serve everybody.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/access/gate.h"
#include "daemon/dispatch.h"
#include "daemon/sessions.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"

namespace prefixd::daemon {

namespace internal {
using Rpc = v1::PrefixCache;
using Transfers = Rpc::WithRawCallbackMethod_Put<Rpc::WithRawCallbackMethod_Fetch<Rpc::Service>>;
using Stores = Rpc::WithRawCallbackMethod_Reserve<
    Rpc::WithRawCallbackMethod_Commit<Rpc::WithRawCallbackMethod_Abandon<Transfers>>>;
using Leases = Rpc::WithRawCallbackMethod_Match<
    Rpc::WithRawCallbackMethod_Acquire<Rpc::WithRawCallbackMethod_Release<Stores>>>;
using Pins = Rpc::WithRawCallbackMethod_Pin<
    Rpc::WithRawCallbackMethod_Unpin<Rpc::WithRawCallbackMethod_Prefetch<Leases>>>;
using Everything = Rpc::WithRawCallbackMethod_Attach<Rpc::WithRawCallbackMethod_OpenSpace<
    Rpc::WithRawCallbackMethod_NotShared<Rpc::WithRawCallbackMethod_TellDevicePins<Pins>>>>;
}  // namespace internal

class PrefixCacheService final : public internal::Everything {
 public:
  using Reactor = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;
  using Message = grpc::ByteBuffer;

  // `cache`, `sessions`, `dispatch` and `gate` must outlive this.
  // Lookups and commits that take longer than `slow` are warned of, beside what they waited for
  // another worker; 0: none.
  PrefixCacheService(cache::Cache* cache, Sessions* sessions, Dispatch* dispatch, Gate* gate,
                     std::chrono::microseconds slow)
      : cache_(cache), sessions_(sessions), dispatch_(dispatch), gate_(gate), slow_(slow) {}

  Sessions::Reactor* Attach(Context* context, const Message* request) override {
    return AttachIn(nullptr, context, request);
  }
  // The same; the session keeps `seat` as long as it lives.
  Sessions::Reactor* AttachIn(std::shared_ptr<Gate::Seat> seat, Context* context,
                              const Message* request);
  Reactor* OpenSpace(Context* context, const Message* request, Message* reply) override;
  Reactor* NotShared(Context* context, const Message* request, Message* reply) override;
  Reactor* TellDevicePins(Context* context, const Message* request, Message* reply) override;
  Reactor* Match(Context* context, const Message* request, Message* reply) override;
  Reactor* Acquire(Context* context, const Message* request, Message* reply) override;
  Reactor* Prefetch(Context* context, const Message* request, Message* reply) override;
  Reactor* Release(Context* context, const Message* request, Message* reply) override;
  Reactor* Reserve(Context* context, const Message* request, Message* reply) override;
  Reactor* Commit(Context* context, const Message* request, Message* reply) override;
  Reactor* Abandon(Context* context, const Message* request, Message* reply) override;
  Reactor* Pin(Context* context, const Message* request, Message* reply) override;
  Reactor* Unpin(Context* context, const Message* request, Message* reply) override;
  grpc::ServerReadReactor<Message>* Put(Context* context, Message* reply) override {
    return PutIn(nullptr, context, reply);
  }
  grpc::ServerWriteReactor<Message>* Fetch(Context* context, const Message* request) override {
    return FetchIn(nullptr, context, request);
  }
  // The same; the stream keeps `charge` as long as it lives.
  grpc::ServerReadReactor<Message>* PutIn(std::shared_ptr<void> charge, Context* context,
                                          Message* reply);
  grpc::ServerWriteReactor<Message>* FetchIn(std::shared_ptr<void> charge, Context* context,
                                             const Message* request);

  // What the calls do, on the calling thread. `caller` says whose session it is and takes what is
  // handed out.
  absl::Status DoMatch(v1::AcquireRequest* request, v1::AcquireReply* reply);
  // Asks other hosts too, and then waits for them.
  absl::Status DoAcquire(v1::AcquireRequest* request, const cache::Patience& patience,
                         const Caller& caller, v1::AcquireReply* reply);
  absl::Status DoRelease(const v1::ReleaseRequest& request, v1::Ack* reply);
  absl::Status DoReserve(const v1::ReserveRequest& request, HandOut* hand_out,
                         v1::ReserveReply* reply);
  absl::Status DoCommit(const v1::CommitRequest& request, const cache::Patience& patience,
                        const Caller& caller, v1::CommitReply* reply);
  absl::Status DoAbandon(const v1::AbandonRequest& request, v1::Ack* reply);

 private:
  absl::Status DoOpenSpace(const v1::OpenSpaceRequest& request, const Context& context,
                           v1::OpenSpaceReply* reply);
  absl::Status DoNotShared(const v1::NotSharedRequest& request);
  // Notes how an OpenSpace ended: people see which model is not shared, and why.
  void NoteOpening(const v1::OpenSpaceRequest& request, const absl::Status& status);
  using Items = std::vector<cache::Request>;
  // Takes the items out of the request and releases what it releases.
  absl::Status TakeAcquire(v1::AcquireRequest* request, Items* items);
  absl::Status AnswerItems(const v1::AcquireRequest& request, Items& items,
                           const cache::Patience& patience, const Caller& caller,
                           v1::AcquireReply* reply);
  // The same; nullopt, with nothing done, if other hosts may have more.
  std::optional<absl::Status> AnswerHere(const v1::AcquireRequest& request, Items& items,
                                         const cache::Patience& patience, const Caller& caller,
                                         v1::AcquireReply* reply);
  // Writes the answers of the set that begins with item `begin`.
  void AnswerSet(const v1::AcquireRequest& request, size_t begin, Items& items,
                 std::span<const cache::Acquired> set, TraceTime start, const Caller& caller,
                 v1::AcquireReply* reply);
  void LogAcquire(const cache::Request& request, const cache::Acquired& acquired, uint64_t micros,
                  const Caller& caller);
  bool CountIfSlow(uint64_t micros);  // true: it was, and is counted
  void BringAll(const Caller& caller, Items& items);
  absl::Status DoPrefetch(v1::AcquireRequest* request, bool bring, HandOutCall* call,
                          v1::PrefetchReply* reply);
  absl::Status DoPin(const v1::PinRequest& request, HandOutCall* call, v1::PinReply* reply);
  absl::Status DoUnpin(const v1::UnpinRequest& request, v1::UnpinReply* reply);
  // Acquires the items of one set, or a single item.
  absl::StatusOr<std::vector<cache::Acquired>> AcquireItems(block::SessionId session,
                                                            std::span<const cache::Request> items,
                                                            const cache::Patience& patience);
  // Makes the plan that the item asked for. Puts it, or its error, beside the lease in the answer.
  void ReserveIn(const v1::AcquireRequest::Item& from, cache::Request item,
                 block::SessionId session, v1::Answer* answer);

  cache::Cache* const cache_;
  Sessions* const sessions_;
  Dispatch* const dispatch_;
  Gate* const gate_;
  const std::chrono::microseconds slow_;
};

}  // namespace prefixd::daemon
