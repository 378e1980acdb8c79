// The calls that a worker makes: each is FromProto, Cache, ToProto. Nothing is decided here.
//
// Thread-safe. Attach runs as a callback reactor, everything else on gRPC's own bounded threads.
#pragma once
#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/sessions.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"

namespace prefixd::daemon {

class PrefixCacheService final
    : public v1::PrefixCache::WithCallbackMethod_Attach<v1::PrefixCache::Service> {
 public:
  // Both must outlive this.
  PrefixCacheService(cache::Cache* cache, Sessions* sessions)
      : cache_(cache), sessions_(sessions) {}

  Sessions::Reactor* Attach(grpc::CallbackServerContext* context,
                            const v1::AttachRequest* request) override;
  grpc::Status OpenSpace(grpc::ServerContext* context, const v1::OpenSpaceRequest* request,
                         v1::OpenSpaceReply* reply) override;
  grpc::Status Match(grpc::ServerContext* context, const v1::AcquireRequest* request,
                     v1::AcquireReply* reply) override;
  grpc::Status Acquire(grpc::ServerContext* context, const v1::AcquireRequest* request,
                       v1::AcquireReply* reply) override;
  grpc::Status Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                       v1::Ack* reply) override;
  grpc::Status Reserve(grpc::ServerContext* context, const v1::ReserveRequest* request,
                       v1::ReserveReply* reply) override;
  grpc::Status Commit(grpc::ServerContext* context, const v1::CommitRequest* request,
                      v1::CommitReply* reply) override;
  grpc::Status Abandon(grpc::ServerContext* context, const v1::AbandonRequest* request,
                       v1::Ack* reply) override;
  // A stream that fails, for whatever reason, abandons its reservation.
  grpc::Status Put(grpc::ServerContext* context, grpc::ServerReader<v1::PutChunk>* reader,
                   v1::CommitReply* reply) override;
  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::FetchChunk>* writer) override;

 private:
  absl::Status DoMatch(const v1::AcquireRequest& request, v1::AcquireReply* reply);
  absl::Status DoAcquire(const v1::AcquireRequest& request, const grpc::ServerContext& context,
                         v1::AcquireReply* reply);
  absl::Status DoReserve(const v1::ReserveRequest& request, v1::ReserveReply* reply);
  absl::Status DoCommit(const v1::CommitRequest& request, v1::CommitReply* reply);
  absl::Status TakePages(block::SessionId session, block::ReservationId reservation,
                         base::Deadline deadline, grpc::ServerReader<v1::PutChunk>* reader);

  cache::Cache* const cache_;
  Sessions* const sessions_;
};

}  // namespace prefixd::daemon
