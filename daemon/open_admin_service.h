// OpenAdminService answers sums and settings to everybody who may store, on the workers' socket and
// on TCP. It refuses the other calls of Admin and names the admin socket, which serves them.
//
// Thread-safe.
#pragma once
#include <string>

#include "grpcpp/grpcpp.h"

#include "daemon/admin_service.h"
#include "daemon/token.h"
#include "prefixd/v1/admin.grpc.pb.h"

namespace prefixd::daemon {

class OpenAdminService final : public v1::Admin::CallbackService {
 public:
  using Reactor = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;

  // `admin` and `token` must outlive this. `token`: null where the connection needs none.
  // `admin_socket`: where the rest is served, for the refusals; empty = nowhere.
  OpenAdminService(AdminService* admin, const Token* token, std::string admin_socket)
      : admin_(admin), token_(token), admin_socket_(std::move(admin_socket)) {}

  // Without spaces: which models there are, and how much of each, is not everybody's.
  Reactor* GetStats(Context* context, const v1::GetStatsRequest* request,
                    v1::GetStatsReply* reply) override;
  Reactor* GetConfig(Context* context, const v1::GetConfigRequest* request,
                     v1::GetConfigReply* reply) override;

  Reactor* ListSpaces(Context* context, const v1::ListSpacesRequest*,
                      v1::ListSpacesReply*) override {
    return Refuse(context, "list_spaces");
  }
  Reactor* Clear(Context* context, const v1::ClearRequest*, v1::ClearReply*) override {
    return Refuse(context, "clear");
  }
  Reactor* Flush(Context* context, const v1::FlushRequest*, v1::FlushReply*) override {
    return Refuse(context, "flush");
  }
  Reactor* Verify(Context* context, const v1::VerifyRequest*, v1::VerifyReply*) override {
    return Refuse(context, "verify");
  }
  Reactor* ListSessions(Context* context, const v1::ListSessionsRequest*,
                        v1::ListSessionsReply*) override {
    return Refuse(context, "list_sessions");
  }
  Reactor* ListLeases(Context* context, const v1::ListLeasesRequest*,
                      v1::ListLeasesReply*) override {
    return Refuse(context, "list_leases");
  }
  Reactor* EndSession(Context* context, const v1::EndSessionRequest*,
                      v1::EndSessionReply*) override {
    return Refuse(context, "end_session");
  }
  Reactor* ListPins(Context* context, const v1::ListPinsRequest*, v1::ListPinsReply*) override {
    return Refuse(context, "list_pins");
  }
  Reactor* SetBudgets(Context* context, const v1::SetBudgetsRequest*,
                      v1::SetBudgetsReply*) override {
    return Refuse(context, "set_budgets");
  }
  Reactor* SetSpaceLimits(Context* context, const v1::SetSpaceLimitsRequest*,
                          v1::SetSpaceLimitsReply*) override {
    return Refuse(context, "set_space_limits");
  }
  Reactor* Why(Context* context, const v1::WhyRequest*, v1::WhyReply*) override {
    return Refuse(context, "why");
  }

 private:
  // PERMISSION_DENIED, with the way to the verb; UNAUTHENTICATED without the token.
  Reactor* Refuse(Context* context, const char* verb) const;

  AdminService* const admin_;
  const Token* const token_;
  const std::string admin_socket_;
};

}  // namespace prefixd::daemon
