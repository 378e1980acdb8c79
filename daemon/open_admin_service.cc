#include "daemon/open_admin_service.h"

#include "absl/strings/str_cat.h"

namespace prefixd::daemon {

OpenAdminService::Reactor* OpenAdminService::GetStats(Context* context, const v1::GetStatsRequest*,
                                                      v1::GetStatsReply* reply) {
  if (const grpc::Status status = CheckToken(token_, *context); !status.ok())
    return Answer(context, status);
  return admin_->GetSums(context, reply);
}

OpenAdminService::Reactor* OpenAdminService::GetConfig(Context* context,
                                                       const v1::GetConfigRequest* request,
                                                       v1::GetConfigReply* reply) {
  if (const grpc::Status status = CheckToken(token_, *context); !status.ok())
    return Answer(context, status);
  return admin_->GetConfig(context, request, reply);
}

OpenAdminService::Reactor* OpenAdminService::Refuse(Context* context, const char* verb) const {
  grpc::Status status = CheckToken(token_, *context);
  if (status.ok()) {
    status = {
        grpc::StatusCode::PERMISSION_DENIED,
        absl::StrCat(verb, ": served on the admin socket only, ",
                     admin_socket_.empty() ? "and this prefixd has none"
                                           : absl::StrCat(admin_socket_, " on prefixd's host"),
                     "; this is where workers connect")};
  }
  return Answer(context, status);
}

}  // namespace prefixd::daemon
