// The workers' calls behind the token: what is served on TCP.
//
// Thread-safe. A verb that is not here is not served there.
#pragma once
#include "grpcpp/grpcpp.h"

#include "daemon/prefix_cache_service.h"
#include "daemon/token.h"

namespace prefixd::daemon {

class TokenDoor final : public internal::Everything {
 public:
  using Reactor = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;

  // Both must outlive this.
  TokenDoor(PrefixCacheService* inside, const Token* token) : inside_(inside), token_(token) {}

  Sessions::Reactor* Attach(Context* context, const v1::AttachRequest* request) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* Put(Context* context,
                                                 grpc::ByteBuffer* reply) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Fetch(Context* context,
                                                    const grpc::ByteBuffer* request) override;

  Reactor* OpenSpace(Context* context, const v1::OpenSpaceRequest* request,
                     v1::OpenSpaceReply* reply) override {
    return Pass(&PrefixCacheService::OpenSpace, context, request, reply);
  }
  Reactor* NotShared(Context* context, const v1::NotSharedRequest* request,
                     v1::Ack* reply) override {
    return Pass(&PrefixCacheService::NotShared, context, request, reply);
  }
  Reactor* Match(Context* context, const v1::AcquireRequest* request,
                 v1::AcquireReply* reply) override {
    return Pass(&PrefixCacheService::Match, context, request, reply);
  }
  Reactor* Acquire(Context* context, const v1::AcquireRequest* request,
                   v1::AcquireReply* reply) override {
    return Pass(&PrefixCacheService::Acquire, context, request, reply);
  }
  Reactor* Prefetch(Context* context, const v1::AcquireRequest* request,
                    v1::PrefetchReply* reply) override {
    return Pass(&PrefixCacheService::Prefetch, context, request, reply);
  }
  Reactor* Join(Context* context, const v1::JoinRequest* request,
                v1::AcquireReply* reply) override {
    return Pass(&PrefixCacheService::Join, context, request, reply);
  }
  Reactor* Release(Context* context, const v1::ReleaseRequest* request, v1::Ack* reply) override {
    return Pass(&PrefixCacheService::Release, context, request, reply);
  }
  Reactor* Reserve(Context* context, const v1::ReserveRequest* request,
                   v1::ReserveReply* reply) override {
    return Pass(&PrefixCacheService::Reserve, context, request, reply);
  }
  Reactor* Commit(Context* context, const v1::CommitRequest* request,
                  v1::CommitReply* reply) override {
    return Pass(&PrefixCacheService::Commit, context, request, reply);
  }
  Reactor* Abandon(Context* context, const v1::AbandonRequest* request, v1::Ack* reply) override {
    return Pass(&PrefixCacheService::Abandon, context, request, reply);
  }
  Reactor* Pin(Context* context, const v1::PinRequest* request, v1::PinReply* reply) override {
    return Pass(&PrefixCacheService::Pin, context, request, reply);
  }
  Reactor* Unpin(Context* context, const v1::UnpinRequest* request,
                 v1::UnpinReply* reply) override {
    return Pass(&PrefixCacheService::Unpin, context, request, reply);
  }

 private:
  template <typename Request, typename Reply>
  Reactor* Pass(Reactor* (PrefixCacheService::*method)(Context*, const Request*, Reply*),
                Context* context, const Request* request, Reply* reply) {
    const grpc::Status status = CheckToken(token_, *context);
    return status.ok() ? (inside_->*method)(context, request, reply) : Answer(context, status);
  }

  PrefixCacheService* const inside_;
  const Token* const token_;
};

}  // namespace prefixd::daemon
