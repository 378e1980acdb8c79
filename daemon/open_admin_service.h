// OpenAdminService answers sums and settings to everybody who may store, on the workers' socket and
// on TCP. It refuses the other calls of Admin and names the admin socket, which serves them.
//
// Thread-safe.
#pragma once
#include <string>

#include "grpcpp/grpcpp.h"

#include "daemon/access/gate.h"
#include "daemon/admin_service.h"
#include "prefixd/v1/admin.grpc.pb.h"

namespace prefixd::daemon {

namespace internal {
using Admin = v1::Admin;
using Told = Admin::WithRawCallbackMethod_GetStats<Admin::WithRawCallbackMethod_GetConfig<
    Admin::WithRawCallbackMethod_WatchEvents<Admin::Service>>>;
using Lists = Admin::WithRawCallbackMethod_ListSpaces<Admin::WithRawCallbackMethod_ListSessions<
    Admin::WithRawCallbackMethod_ListLeases<Admin::WithRawCallbackMethod_ListPins<
        Admin::WithRawCallbackMethod_ListPrefixes<Admin::WithRawCallbackMethod_Why<Told>>>>>>;
using Changes = Admin::WithRawCallbackMethod_Clear<Admin::WithRawCallbackMethod_Flush<
    Admin::WithRawCallbackMethod_Verify<Admin::WithRawCallbackMethod_EndSession<Lists>>>>;
using AllOfAdmin =
    Admin::WithRawCallbackMethod_SetBudgets<Admin::WithRawCallbackMethod_SetSpaceLimits<Changes>>;
}  // namespace internal

class OpenAdminService final : public internal::AllOfAdmin {
 public:
  using Reactor = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;
  using Message = grpc::ByteBuffer;

  // `admin`, `dispatch` and `gate` must outlive this.
  // `admin_socket`: where the rest is served, for the refusals; empty = nowhere.
  OpenAdminService(AdminService* admin, Dispatch* dispatch, Gate* gate, std::string admin_socket)
      : admin_(admin), dispatch_(dispatch), gate_(gate), admin_socket_(std::move(admin_socket)) {}

  // Leaves out the spaces: not everybody may know which models there are, and how much of each.
  Reactor* GetStats(Context* context, const Message* request, Message* reply) override;
  Reactor* GetConfig(Context* context, const Message* request, Message* reply) override;

  Reactor* ListSpaces(Context* context, const Message*, Message*) override {
    return Refuse(context, "list_spaces");
  }
  Reactor* Clear(Context* context, const Message*, Message*) override {
    return Refuse(context, "clear");
  }
  Reactor* Flush(Context* context, const Message*, Message*) override {
    return Refuse(context, "flush");
  }
  Reactor* Verify(Context* context, const Message*, Message*) override {
    return Refuse(context, "verify");
  }
  Reactor* ListSessions(Context* context, const Message*, Message*) override {
    return Refuse(context, "list_sessions");
  }
  Reactor* ListLeases(Context* context, const Message*, Message*) override {
    return Refuse(context, "list_leases");
  }
  Reactor* EndSession(Context* context, const Message*, Message*) override {
    return Refuse(context, "end_session");
  }
  Reactor* ListPins(Context* context, const Message*, Message*) override {
    return Refuse(context, "list_pins");
  }
  Reactor* SetBudgets(Context* context, const Message*, Message*) override {
    return Refuse(context, "set_budgets");
  }
  Reactor* SetSpaceLimits(Context* context, const Message*, Message*) override {
    return Refuse(context, "set_space_limits");
  }
  Reactor* ListPrefixes(Context* context, const Message*, Message*) override {
    return Refuse(context, "list_prefixes");
  }
  grpc::ServerWriteReactor<Message>* WatchEvents(Context* context, const Message*) override;
  Reactor* Why(Context* context, const Message*, Message*) override {
    return Refuse(context, "why");
  }

 private:
  // Answers PERMISSION_DENIED, with the way to the verb, or UNAUTHENTICATED without the token.
  Reactor* Refuse(Context* context, const char* verb) const;
  grpc::Status RefusalOf(const Context& context, const char* verb) const;

  AdminService* const admin_;
  Dispatch* const dispatch_;
  Gate* const gate_;
  const std::string admin_socket_;
};

}  // namespace prefixd::daemon
