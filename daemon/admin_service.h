// The calls that people, scripts and routers make.
//
// Thread-safe.
#pragma once
#include <vector>

#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/config.h"
#include "prefixd/v1/admin.grpc.pb.h"

namespace prefixd::daemon {

class AdminService final : public v1::Admin::Service {
 public:
  // `cache` must outlive this.
  AdminService(cache::Cache* cache, std::string version, std::vector<Setting> settings)
      : cache_(cache), version_(std::move(version)), settings_(std::move(settings)) {}

  grpc::Status GetStats(grpc::ServerContext* context, const v1::GetStatsRequest* request,
                        v1::GetStatsReply* reply) override;
  grpc::Status ListSpaces(grpc::ServerContext* context, const v1::ListSpacesRequest* request,
                          v1::ListSpacesReply* reply) override;
  grpc::Status Clear(grpc::ServerContext* context, const v1::ClearRequest* request,
                     v1::ClearReply* reply) override;
  grpc::Status Flush(grpc::ServerContext* context, const v1::FlushRequest* request,
                     v1::FlushReply* reply) override;
  grpc::Status GetConfig(grpc::ServerContext* context, const v1::GetConfigRequest* request,
                         v1::GetConfigReply* reply) override;

 private:
  absl::Status DoListSpaces(const v1::ListSpacesRequest& request, v1::ListSpacesReply* reply);
  absl::Status DoClear(const v1::ClearRequest& request, v1::ClearReply* reply);

  cache::Cache* const cache_;
  const std::string version_;
  const std::vector<Setting> settings_;
};

}  // namespace prefixd::daemon
