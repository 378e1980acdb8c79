// Serves the workers' calls on TCP, where every call needs the token.
//
// Thread-safe. A verb that is not here is not served on TCP.
#pragma once
#include "grpcpp/grpcpp.h"

#include "daemon/prefix_cache_service.h"
#include "daemon/token.h"

namespace prefixd::daemon {

class TokenDoor final : public internal::Everything {
 public:
  using Reactor = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;
  using Message = grpc::ByteBuffer;

  // Both must outlive this.
  TokenDoor(PrefixCacheService* inside, const Token* token) : inside_(inside), token_(token) {}

  Sessions::Reactor* Attach(Context* context, const Message* request) override;
  grpc::ServerReadReactor<Message>* Put(Context* context, Message* reply) override;
  grpc::ServerWriteReactor<Message>* Fetch(Context* context, const Message* request) override;

  Reactor* OpenSpace(Context* context, const Message* request, Message* reply) override {
    return Pass(&PrefixCacheService::OpenSpace, context, request, reply);
  }
  Reactor* NotShared(Context* context, const Message* request, Message* reply) override {
    return Pass(&PrefixCacheService::NotShared, context, request, reply);
  }
  Reactor* Match(Context* context, const Message* request, Message* reply) override {
    return Pass(&PrefixCacheService::Match, context, request, reply);
  }
  Reactor* Acquire(Context* context, const Message* request, Message* reply) override {
    return Pass(&PrefixCacheService::Acquire, context, request, reply);
  }
  Reactor* Prefetch(Context* context, const Message* request, Message* reply) override {
    return Pass(&PrefixCacheService::Prefetch, context, request, reply);
  }
  Reactor* Release(Context* context, const Message* request, Message* reply) override {
    return Pass(&PrefixCacheService::Release, context, request, reply);
  }
  Reactor* Reserve(Context* context, const Message* request, Message* reply) override {
    return Pass(&PrefixCacheService::Reserve, context, request, reply);
  }
  Reactor* Commit(Context* context, const Message* request, Message* reply) override {
    return Pass(&PrefixCacheService::Commit, context, request, reply);
  }
  Reactor* Abandon(Context* context, const Message* request, Message* reply) override {
    return Pass(&PrefixCacheService::Abandon, context, request, reply);
  }
  Reactor* Pin(Context* context, const Message* request, Message* reply) override {
    return Pass(&PrefixCacheService::Pin, context, request, reply);
  }
  Reactor* Unpin(Context* context, const Message* request, Message* reply) override {
    return Pass(&PrefixCacheService::Unpin, context, request, reply);
  }

 private:
  using Verb = Reactor* (PrefixCacheService::*)(Context*, const Message*, Message*);
  Reactor* Pass(Verb verb, Context* context, const Message* request, Message* reply) {
    const grpc::Status status = CheckToken(token_, *context);
    return status.ok() ? (inside_->*verb)(context, request, reply) : Answer(context, status);
  }

  PrefixCacheService* const inside_;
  const Token* const token_;
};

}  // namespace prefixd::daemon
