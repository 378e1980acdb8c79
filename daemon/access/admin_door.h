// Serves Admin on the workers' socket and on TCP where there is an access file: each call is
// checked by the gate. A caller of one tenant sees and clears that tenant's spaces only.
//
// Thread-safe.
#pragma once
#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/access/gate.h"
#include "daemon/admin_service.h"
#include "prefixd/v1/admin.grpc.pb.h"

namespace prefixd::daemon {

class AdminDoor final : public v1::Admin::CallbackService {
 public:
  using Reactor = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;

  // All must outlive this.
  AdminDoor(AdminService* inside, cache::Cache* cache, Dispatch* dispatch, Gate* gate)
      : inside_(inside), cache_(cache), dispatch_(dispatch), gate_(gate) {}

  Reactor* GetStats(Context* context, const v1::GetStatsRequest* request,
                    v1::GetStatsReply* reply) override;
  Reactor* ListSpaces(Context* context, const v1::ListSpacesRequest* request,
                      v1::ListSpacesReply* reply) override;
  Reactor* Clear(Context* context, const v1::ClearRequest* request, v1::ClearReply* reply) override;
  EventStreams::Reactor* WatchEvents(Context* context,
                                     const v1::WatchEventsRequest* request) override;

  Reactor* Flush(Context* context, const v1::FlushRequest* request,
                 v1::FlushReply* reply) override {
    return Pass("Admin.Flush", &AdminService::Flush, context, request, reply);
  }
  Reactor* Verify(Context* context, const v1::VerifyRequest* request,
                  v1::VerifyReply* reply) override {
    return Pass("Admin.Verify", &AdminService::Verify, context, request, reply);
  }
  Reactor* GetConfig(Context* context, const v1::GetConfigRequest* request,
                     v1::GetConfigReply* reply) override {
    return Pass("Admin.GetConfig", &AdminService::GetConfig, context, request, reply);
  }
  Reactor* ListSessions(Context* context, const v1::ListSessionsRequest* request,
                        v1::ListSessionsReply* reply) override {
    return Pass("Admin.ListSessions", &AdminService::ListSessions, context, request, reply);
  }
  Reactor* ListLeases(Context* context, const v1::ListLeasesRequest* request,
                      v1::ListLeasesReply* reply) override {
    return Pass("Admin.ListLeases", &AdminService::ListLeases, context, request, reply);
  }
  Reactor* EndSession(Context* context, const v1::EndSessionRequest* request,
                      v1::EndSessionReply* reply) override {
    return Pass("Admin.EndSession", &AdminService::EndSession, context, request, reply);
  }
  Reactor* ListPins(Context* context, const v1::ListPinsRequest* request,
                    v1::ListPinsReply* reply) override {
    return Pass("Admin.ListPins", &AdminService::ListPins, context, request, reply);
  }
  Reactor* SetBudgets(Context* context, const v1::SetBudgetsRequest* request,
                      v1::SetBudgetsReply* reply) override {
    return Pass("Admin.SetBudgets", &AdminService::SetBudgets, context, request, reply);
  }
  Reactor* SetSpaceLimits(Context* context, const v1::SetSpaceLimitsRequest* request,
                          v1::SetSpaceLimitsReply* reply) override {
    return Pass("Admin.SetSpaceLimits", &AdminService::SetSpaceLimits, context, request, reply);
  }
  Reactor* Why(Context* context, const v1::WhyRequest* request, v1::WhyReply* reply) override {
    return Pass("Admin.Why", &AdminService::Why, context, request, reply);
  }
  Reactor* ListPrefixes(Context* context, const v1::ListPrefixesRequest* request,
                        v1::ListPrefixesReply* reply) override {
    return Pass("Admin.ListPrefixes", &AdminService::ListPrefixes, context, request, reply);
  }

 private:
  template <typename Request, typename Reply>
  Reactor* Pass(std::string_view verb,
                Reactor* (AdminService::*method)(Context*, const Request*, Reply*),
                Context* context, const Request* request, Reply* reply) {
    const grpc::Status status = gate_->Check(*context, verb);
    return status.ok() ? (inside_->*method)(context, request, reply) : Answer(context, status);
  }
  bool SeesAll(const Context& context) {
    const PrincipalPtr who = gate_->WhoCalls(context);
    return who != nullptr && who->all();
  }
  void WriteOwnStats(const std::string& tenant, v1::GetStatsReply* reply) const;
  absl::Status WriteOwnSpaces(const std::string& tenant, const v1::ListSpacesRequest& request,
                              v1::ListSpacesReply* reply) const;
  // OK if the tenant may clear what is asked for: one space of its own.
  grpc::Status MayClear(const std::string& tenant, const v1::ClearRequest& request) const;

  AdminService* const inside_;
  cache::Cache* const cache_;
  Dispatch* const dispatch_;
  Gate* const gate_;
};

}  // namespace prefixd::daemon
