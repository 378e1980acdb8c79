#include "daemon/open_admin_service.h"

#include "absl/strings/str_cat.h"

namespace prefixd::daemon {

OpenAdminService::Reactor* OpenAdminService::GetStats(Context* context, const Message* request,
                                                      Message* reply) {
  if (const grpc::Status status = gate_->Check(*context, "Admin.GetStats"); !status.ok())
    return Answer(context, status);
  return dispatch_->Serve<v1::GetStatsRequest, v1::GetStatsReply>(
      context, {"rpc.get_stats"}, request, reply, [this](auto* call) {
        dispatch_->Quick(call, [=, this] {
          admin_->WriteSums(call->reply());
          return absl::OkStatus();
        });
      });
}

OpenAdminService::Reactor* OpenAdminService::GetConfig(Context* context, const Message* request,
                                                       Message* reply) {
  if (const grpc::Status status = gate_->Check(*context, "Admin.GetConfig"); !status.ok())
    return Answer(context, status);
  return dispatch_->Serve<v1::GetConfigRequest, v1::GetConfigReply>(
      context, {"rpc.get_config"}, request, reply, [this](auto* call) {
        dispatch_->Now(call, [=, this] {
          admin_->WriteConfig(call->reply());
          return absl::OkStatus();
        });
      });
}

namespace {

class RefusedStream final : public grpc::ServerWriteReactor<OpenAdminService::Message> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerWriteReactor<OpenAdminService::Message>* OpenAdminService::WatchEvents(Context* context,
                                                                                   const Message*) {
  return new RefusedStream(RefusalOf(*context, "watch_events"));
}

OpenAdminService::Reactor* OpenAdminService::Refuse(Context* context, const char* verb) const {
  return Answer(context, RefusalOf(*context, verb));
}

grpc::Status OpenAdminService::RefusalOf(const Context& context, const char* verb) const {
  grpc::Status status = gate_->Check(context, verb);
  if (status.ok()) {
    status = {
        grpc::StatusCode::PERMISSION_DENIED,
        absl::StrCat(verb, ": served on the admin socket only, ",
                     admin_socket_.empty() ? "and this prefixd has none"
                                           : absl::StrCat(admin_socket_, " on prefixd's host"),
                     "; this is where workers connect")};
  }
  return status;
}

}  // namespace prefixd::daemon
