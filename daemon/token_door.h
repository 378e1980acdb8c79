// Serves the workers' calls where the gate checks each: on TCP, and with an access file on the
// workers' socket too.
//
// Thread-safe. A verb that is not here is not served there.
#pragma once
#include <string_view>

#include "grpcpp/grpcpp.h"

#include "daemon/access/gate.h"
#include "daemon/prefix_cache_service.h"
#include "daemon/token.h"

namespace prefixd::daemon {

class TokenDoor final : public internal::Everything {
 public:
  using Reactor = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;
  using Message = grpc::ByteBuffer;

  // Both must outlive this.
  TokenDoor(PrefixCacheService* inside, Gate* gate) : inside_(inside), gate_(gate) {}

  Sessions::Reactor* Attach(Context* context, const Message* request) override;
  grpc::ServerReadReactor<Message>* Put(Context* context, Message* reply) override;
  grpc::ServerWriteReactor<Message>* Fetch(Context* context, const Message* request) override;

  Reactor* OpenSpace(Context* context, const Message* request, Message* reply) override {
    return Pass("PrefixCache.OpenSpace", &PrefixCacheService::OpenSpace, context, request, reply);
  }
  Reactor* NotShared(Context* context, const Message* request, Message* reply) override {
    return Pass("PrefixCache.NotShared", &PrefixCacheService::NotShared, context, request, reply);
  }
  Reactor* TellDevicePins(Context* context, const Message* request, Message* reply) override {
    return Pass("PrefixCache.TellDevicePins", &PrefixCacheService::TellDevicePins, context, request,
                reply);
  }
  Reactor* Match(Context* context, const Message* request, Message* reply) override {
    return Pass("PrefixCache.Match", &PrefixCacheService::Match, context, request, reply);
  }
  Reactor* Acquire(Context* context, const Message* request, Message* reply) override {
    return Pass("PrefixCache.Acquire", &PrefixCacheService::Acquire, context, request, reply);
  }
  Reactor* Prefetch(Context* context, const Message* request, Message* reply) override {
    return Pass("PrefixCache.Prefetch", &PrefixCacheService::Prefetch, context, request, reply);
  }
  Reactor* Release(Context* context, const Message* request, Message* reply) override {
    return Pass("PrefixCache.Release", &PrefixCacheService::Release, context, request, reply);
  }
  Reactor* Reserve(Context* context, const Message* request, Message* reply) override {
    return Pass("PrefixCache.Reserve", &PrefixCacheService::Reserve, context, request, reply);
  }
  Reactor* Commit(Context* context, const Message* request, Message* reply) override {
    return Pass("PrefixCache.Commit", &PrefixCacheService::Commit, context, request, reply);
  }
  Reactor* Abandon(Context* context, const Message* request, Message* reply) override {
    return Pass("PrefixCache.Abandon", &PrefixCacheService::Abandon, context, request, reply);
  }
  Reactor* Pin(Context* context, const Message* request, Message* reply) override {
    return Pass("PrefixCache.Pin", &PrefixCacheService::Pin, context, request, reply);
  }
  Reactor* Unpin(Context* context, const Message* request, Message* reply) override {
    return Pass("PrefixCache.Unpin", &PrefixCacheService::Unpin, context, request, reply);
  }

 private:
  using Verb = Reactor* (PrefixCacheService::*)(Context*, const Message*, Message*);
  Reactor* Pass(std::string_view name, Verb verb, Context* context, const Message* request,
                Message* reply) {
    const grpc::Status status = gate_->Check(*context, name).status;
    return status.ok() ? (inside_->*verb)(context, request, reply) : Answer(context, status);
  }

  PrefixCacheService* const inside_;
  Gate* const gate_;
};

}  // namespace prefixd::daemon
