#include "daemon/admin_service.h"

#include <algorithm>

#include "spdlog/spdlog.h"

#include "base/bytes.h"
#include "base/status.h"
#include "block/layer_group.h"
#include "daemon/call.h"
#include "wire/admin.h"
#include "wire/limits.h"

namespace prefixd::daemon {

grpc::Status AdminService::GetStats(grpc::ServerContext*, const v1::GetStatsRequest*,
                                    v1::GetStatsReply* reply) {
  Call call(cache_, "rpc.get_stats");
  wire::ToProto(cache_->GetStats(), reply);
  return call.End(absl::OkStatus());
}

grpc::Status AdminService::ListSpaces(grpc::ServerContext*, const v1::ListSpacesRequest* request,
                                      v1::ListSpacesReply* reply) {
  Call call(cache_, "rpc.list_spaces");
  return call.End(DoListSpaces(*request, reply));
}

absl::Status AdminService::DoListSpaces(const v1::ListSpacesRequest& request,
                                        v1::ListSpacesReply* reply) {
  block::SpaceId against{};
  bool explain = false;
  PREFIXD_RETURN_IF_ERROR(wire::ReadSpaceId(request.explain_against(), &against, &explain));
  const std::vector<block::SpaceSummary> spaces = cache_->ListSpaces();
  const auto reference = std::find_if(spaces.begin(), spaces.end(),
                                      [&](const auto& space) { return space.id == against; });
  if (explain && reference == spaces.end()) {
    return absl::NotFoundError(absl::StrCat("list_spaces: no space ", base::ToHex(against)));
  }
  reply->set_epoch(cache_->epoch());
  for (const block::SpaceSummary& space : spaces) {
    v1::ListSpacesReply::Space* to = reply->add_spaces();
    wire::ToProto(space, to);
    if (!explain) continue;
    for (std::string& field : block::DifferingFields(reference->identity, space.identity)) {
      to->add_differing_fields(std::move(field));
    }
  }
  return absl::OkStatus();
}

grpc::Status AdminService::Clear(grpc::ServerContext*, const v1::ClearRequest* request,
                                 v1::ClearReply* reply) {
  Call call(cache_, "rpc.clear");
  return call.End(DoClear(*request, reply));
}

absl::Status AdminService::DoClear(const v1::ClearRequest& request, v1::ClearReply* reply) {
  block::SpaceId space{};
  bool given = false;
  PREFIXD_RETURN_IF_ERROR(wire::ReadSpaceId(request.space_id(), &space, &given));
  PREFIXD_ASSIGN_OR_RETURN(const cache::Cache::Cleared cleared,
                           cache_->Clear(given ? &space : nullptr));
  reply->set_epoch(cache_->epoch());
  reply->set_spaces(cleared.spaces);
  reply->set_bytes(cleared.bytes);
  spdlog::info("clear space={} spaces={} bytes={}", given ? base::ToHex(space) : "all",
               cleared.spaces, base::FormatBytes(cleared.bytes));
  return absl::OkStatus();
}

grpc::Status AdminService::Flush(grpc::ServerContext* context, const v1::FlushRequest*,
                                 v1::FlushReply* reply) {
  Call call(cache_, "rpc.flush");
  const cache::FlushResult result = cache_->Flush(DeadlineOf(*context));
  reply->set_epoch(cache_->epoch());
  reply->set_flushed_bytes(result.flushed_bytes);
  reply->set_dirty_bytes(result.dirty_bytes);
  spdlog::info("flush saved={} left={}", base::FormatBytes(result.flushed_bytes),
               base::FormatBytes(result.dirty_bytes));
  return call.End(absl::OkStatus());
}

grpc::Status AdminService::GetConfig(grpc::ServerContext*, const v1::GetConfigRequest*,
                                     v1::GetConfigReply* reply) {
  Call call(cache_, "rpc.get_config");
  reply->set_epoch(cache_->epoch());
  reply->set_version(version_);
  for (const Setting& setting : settings_) {
    v1::GetConfigReply::Setting* to = reply->add_settings();
    to->set_name(setting.name);
    to->set_value(setting.value);
    to->set_source(setting.source);
  }
  const std::pair<const char*, uint64_t> limits[] = {
      {"protocol", wire::kProtocol},
      {"tokens_per_request", wire::kMaxTokens},
      {"items_per_request", wire::kMaxItems},
      {"token_message_bytes", wire::kMaxTokenMessageBytes},
      {"message_bytes", wire::kMaxMessageBytes},
      {"piece_bytes", wire::kMaxPieceBytes},
      {"groups_per_space", block::kMaxGroups},
      {"formats_per_ladder", block::kMaxLadder},
      {"worker_name_bytes", wire::kMaxWorkerBytes},
      {"request_id_bytes", wire::kMaxRequestIdBytes},
  };
  for (const auto& [name, value] : limits) {
    v1::GetConfigReply::Setting* to = reply->add_limits();
    to->set_name(name);
    to->set_value(std::to_string(value));
    to->set_source("default");
  }
  return call.End(absl::OkStatus());
}

}  // namespace prefixd::daemon
