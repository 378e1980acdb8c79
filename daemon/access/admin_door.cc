#include "daemon/access/admin_door.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/status.h"
#include "daemon/call.h"
#include "wire/admin.h"

namespace prefixd::daemon {
namespace {

class RefusedStream final : public EventStreams::Reactor {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

std::string BytesOf(const block::SpaceId& id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

}  // namespace

AdminDoor::Reactor* AdminDoor::GetStats(Context* context, const v1::GetStatsRequest* request,
                                        v1::GetStatsReply* reply) {
  const grpc::Status status = gate_->Check(*context, "Admin.GetStats");
  if (!status.ok()) return Answer(context, status);
  if (SeesAll(*context)) return inside_->GetStats(context, request, reply);
  return dispatch_->QuickAdmin(context, [=, this, tenant = gate_->TenantOf(*context)] {
    Call call(cache_, "rpc.get_stats");
    WriteOwnStats(tenant, reply);
    return call.End(absl::OkStatus());
  });
}

void AdminDoor::WriteOwnStats(const std::string& tenant, v1::GetStatsReply* reply) const {
  std::set<std::string> own;
  for (const block::SpaceSummary& space : cache_->ListSpaces()) {
    if (space.identity.tenant == tenant) own.insert(BytesOf(space.id));
  }
  v1::GetStatsReply all;
  wire::ToProto(cache_->GetStats(), &all);
  reply->set_epoch(cache_->epoch());
  reply->set_version(all.version());
  for (v1::SpaceStats& space : *all.mutable_spaces()) {
    if (own.contains(space.space_id())) *reply->add_spaces() = std::move(space);
  }
}

AdminDoor::Reactor* AdminDoor::ListSpaces(Context* context, const v1::ListSpacesRequest* request,
                                          v1::ListSpacesReply* reply) {
  const grpc::Status status = gate_->Check(*context, "Admin.ListSpaces");
  if (!status.ok()) return Answer(context, status);
  if (SeesAll(*context)) return inside_->ListSpaces(context, request, reply);
  return dispatch_->QuickAdmin(context, [=, this, tenant = gate_->TenantOf(*context)] {
    Call call(cache_, "rpc.list_spaces");
    return call.End(WriteOwnSpaces(tenant, *request, reply));
  });
}

absl::Status AdminDoor::WriteOwnSpaces(const std::string& tenant,
                                       const v1::ListSpacesRequest& request,
                                       v1::ListSpacesReply* reply) const {
  block::SpaceId against{};
  bool explain = false;
  PREFIXD_RETURN_IF_ERROR(wire::ReadSpaceId(request.explain_against(), &against, &explain));
  std::vector<block::SpaceSummary> spaces = cache_->ListSpaces();
  std::erase_if(spaces, [&tenant](const auto& space) { return space.identity.tenant != tenant; });
  const auto reference =
      std::ranges::find_if(spaces, [&against](const auto& space) { return space.id == against; });
  if (explain && reference == spaces.end()) {
    return absl::NotFoundError(
        absl::StrCat("list_spaces: tenant ", tenant, " has no space ", base::ToHex(against)));
  }
  reply->set_epoch(cache_->epoch());
  for (const block::SpaceSummary& space : spaces) {
    v1::ListSpacesReply::Space* const to = reply->add_spaces();
    wire::ToProto(space, to);
    if (!explain) continue;
    for (std::string& field : block::DifferingFields(reference->identity, space.identity)) {
      to->add_differing_fields(std::move(field));
    }
  }
  return absl::OkStatus();
}

AdminDoor::Reactor* AdminDoor::Clear(Context* context, const v1::ClearRequest* request,
                                     v1::ClearReply* reply) {
  grpc::Status status = gate_->Check(*context, "Admin.Clear");
  if (status.ok() && !SeesAll(*context)) status = MayClear(gate_->TenantOf(*context), *request);
  return status.ok() ? inside_->Clear(context, request, reply) : Answer(context, status);
}

// A space of another tenant is refused in the words for one that does not exist.
grpc::Status AdminDoor::MayClear(const std::string& tenant, const v1::ClearRequest& request) const {
  std::string why;
  if (request.purge()) {
    why = "a purge wants an admin of all tenants (\"tenant\": \"*\")";
  } else if (request.space_id().empty()) {
    why = absl::StrCat("name a space: everything is not tenant ", tenant, "'s");
  } else {
    const std::vector<block::SpaceSummary> spaces = cache_->ListSpaces();
    const bool own = std::ranges::any_of(spaces, [&](const auto& space) {
      return space.identity.tenant == tenant && BytesOf(space.id) == request.space_id();
    });
    if (!own) why = absl::StrCat("tenant ", tenant, " has no such space");
  }
  if (why.empty()) return grpc::Status::OK;
  return gate_->Deny("refused.tenant", absl::StrCat("Admin.Clear: ", why));
}

EventStreams::Reactor* AdminDoor::WatchEvents(Context* context,
                                              const v1::WatchEventsRequest* request) {
  const grpc::Status status = gate_->Check(*context, "Admin.WatchEvents");
  if (!status.ok()) return new RefusedStream(status);
  return inside_->WatchEvents(context, request);
}

}  // namespace prefixd::daemon
