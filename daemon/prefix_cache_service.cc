#include "daemon/prefix_cache_service.h"

#include "spdlog/spdlog.h"

#include "base/status.h"
#include "daemon/call.h"
#include "daemon/listen_address.h"
#include "daemon/request_log.h"
#include "daemon/requests.h"
#include "wire/answer.h"
#include "wire/identity.h"
#include "wire/request.h"

namespace prefixd::daemon {
namespace {

// Releases the leases of an Acquire that fails halfway: the caller never learns their ids.
class LeaseKeeper {
 public:
  LeaseKeeper(cache::Cache* cache, block::SessionId session) : cache_(cache), session_(session) {}
  ~LeaseKeeper() {
    for (block::LeaseId lease : leases_) cache_->Release(session_, {.lease = lease}).IgnoreError();
  }
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;
  void Add(block::LeaseId lease) {
    if (lease) leases_.push_back(lease);
  }
  void HandOver() { leases_.clear(); }

 private:
  cache::Cache* const cache_;
  const block::SessionId session_;
  std::vector<block::LeaseId> leases_;
};

// Every one is tried; the first error is the answer.
absl::Status ReleaseAll(cache::Cache* cache, block::SessionId session,
                        const google::protobuf::RepeatedPtrField<v1::Released>& released) {
  absl::Status first;
  for (const v1::Released& one : released) first.Update(cache->Release(session, ReadReleased(one)));
  return first;
}

uint64_t MicrosSince(std::chrono::steady_clock::time_point start) {
  const auto passed = std::chrono::steady_clock::now() - start;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(passed).count());
}

}  // namespace

Sessions::Reactor* PrefixCacheService::Attach(grpc::CallbackServerContext*,
                                              const v1::AttachRequest* request) {
  return sessions_->Attach(*request);
}

grpc::Status PrefixCacheService::OpenSpace(grpc::ServerContext* context,
                                           const v1::OpenSpaceRequest* request,
                                           v1::OpenSpaceReply* reply) {
  Call call(cache_, "rpc.open_space");
  if (absl::Status status = CheckSize(*request); !status.ok()) return call.End(status);
  absl::StatusOr<block::SpaceIdentity> identity = wire::FromProto(request->identity());
  if (!identity.ok()) return call.End(identity.status());
  identity->tenant = TenantOf(context->peer());
  absl::StatusOr<cache::OpenedSpace> opened =
      cache_->OpenSpace({request->session()}, *std::move(identity));
  if (!opened.ok()) return call.End(opened.status());
  reply->set_epoch(cache_->epoch());
  reply->set_space(opened->space.value);
  reply->set_space_id(opened->id.data(), opened->id.size());
  reply->set_block_tokens(opened->block_tokens);
  reply->set_created(opened->created);
  reply->set_nearest_model(opened->nearest_model);
  for (std::string& field : opened->differing_fields) reply->add_differing_fields(std::move(field));
  return call.End(absl::OkStatus());
}

grpc::Status PrefixCacheService::Match(grpc::ServerContext*, const v1::AcquireRequest* request,
                                       v1::AcquireReply* reply) {
  Call call(cache_, "rpc.match");
  return call.End(DoMatch(*request, reply));
}

absl::Status PrefixCacheService::DoMatch(const v1::AcquireRequest& request,
                                         v1::AcquireReply* reply) {
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<cache::Request> items, ReadItems(request));
  for (const cache::Request& item : items) {
    PREFIXD_ASSIGN_OR_RETURN(const block::MatchAnswer match,
                             cache_->Match({request.session()}, item));
    wire::ToProto({}, match, {}, reply->add_answers());
  }
  reply->set_epoch(cache_->epoch());
  return absl::OkStatus();
}

grpc::Status PrefixCacheService::Acquire(grpc::ServerContext* context,
                                         const v1::AcquireRequest* request,
                                         v1::AcquireReply* reply) {
  Call call(cache_, "rpc.acquire");
  return call.End(DoAcquire(*request, *context, reply));
}

absl::Status PrefixCacheService::DoAcquire(const v1::AcquireRequest& request,
                                           const grpc::ServerContext& context,
                                           v1::AcquireReply* reply) {
  const base::Deadline deadline = DeadlineOf(context);
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<cache::Request> items, ReadItems(request));
  const block::SessionId session{request.session()};
  PREFIXD_RETURN_IF_ERROR(ReleaseAll(cache_, session, request.release()));
  LeaseKeeper leases(cache_, session);
  for (const cache::Request& item : items) {
    const auto start = std::chrono::steady_clock::now();
    PREFIXD_ASSIGN_OR_RETURN(const cache::Acquired acquired,
                             cache_->Acquire(session, item, deadline));
    leases.Add(acquired.lease);
    wire::ToProto(acquired.lease, acquired.match, acquired.pages, reply->add_answers());
    if (spdlog::should_log(spdlog::level::info)) {
      spdlog::info("{}", AcquireLine(item, acquired, MicrosSince(start)));
    }
  }
  // A worker that gave up waiting never learns what it holds.
  if (context.IsCancelled()) return absl::CancelledError("acquire: the worker stopped waiting");
  leases.HandOver();
  reply->set_epoch(cache_->epoch());
  return absl::OkStatus();
}

grpc::Status PrefixCacheService::Release(grpc::ServerContext*, const v1::ReleaseRequest* request,
                                         v1::Ack* reply) {
  Call call(cache_, "rpc.release");
  if (absl::Status status = CheckSize(*request); !status.ok()) return call.End(status);
  for (const v1::Released& released : request->release()) {
    if (absl::Status status = wire::Check(released); !status.ok()) return call.End(status);
  }
  reply->set_epoch(cache_->epoch());
  return call.End(ReleaseAll(cache_, {request->session()}, request->release()));
}

grpc::Status PrefixCacheService::Reserve(grpc::ServerContext*, const v1::ReserveRequest* request,
                                         v1::ReserveReply* reply) {
  Call call(cache_, "rpc.reserve");
  if (sessions_->draining())
    return call.End(absl::UnavailableError("reserve: the daemon is stopping"));
  return call.End(DoReserve(*request, reply));
}

absl::Status PrefixCacheService::DoReserve(const v1::ReserveRequest& request,
                                           v1::ReserveReply* reply) {
  PREFIXD_ASSIGN_OR_RETURN(const cache::ReserveRequest reserve, ReadReserve(request));
  PREFIXD_ASSIGN_OR_RETURN(const block::ReservePlan plan,
                           cache_->Reserve({request.session()}, reserve));
  wire::ToProto(plan, reply);
  reply->set_epoch(cache_->epoch());
  return absl::OkStatus();
}

grpc::Status PrefixCacheService::Commit(grpc::ServerContext*, const v1::CommitRequest* request,
                                        v1::CommitReply* reply) {
  Call call(cache_, "rpc.commit");
  if (absl::Status status = CheckSize(*request); !status.ok()) return call.End(status);
  return call.End(DoCommit(*request, reply));
}

absl::Status PrefixCacheService::DoCommit(const v1::CommitRequest& request,
                                          v1::CommitReply* reply) {
  const auto start = std::chrono::steady_clock::now();
  PREFIXD_ASSIGN_OR_RETURN(const cache::CommitRequest commit, ReadCommit(request));
  PREFIXD_ASSIGN_OR_RETURN(const block::CommitAnswer answer,
                           cache_->Commit({request.session()}, commit));
  wire::ToProto(answer, reply);
  reply->set_epoch(cache_->epoch());
  if (spdlog::should_log(spdlog::level::info)) {
    spdlog::info("{}", CommitLine(commit, answer, cache_->GetStats(), MicrosSince(start)));
  }
  return absl::OkStatus();
}

grpc::Status PrefixCacheService::Abandon(grpc::ServerContext*, const v1::AbandonRequest* request,
                                         v1::Ack* reply) {
  Call call(cache_, "rpc.abandon");
  reply->set_epoch(cache_->epoch());
  return call.End(cache_->Abandon({request->session()}, {request->reservation()}));
}

}  // namespace prefixd::daemon
