#include "daemon/access/admin_door.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/status.h"
#include "daemon/call.h"
#include "daemon/message.h"
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

// Returns "list_spaces" of "Admin.ListSpaces".
std::string CounterName(std::string_view verb) {
  std::string name;
  for (const char c : verb.substr(verb.find('.') + 1)) {
    if (absl::ascii_isupper(static_cast<unsigned char>(c)) && !name.empty()) name += '_';
    name += absl::ascii_tolower(static_cast<unsigned char>(c));
  }
  return name;
}

}  // namespace

Gate::Admission AdminDoor::Check(const Context& context, std::string_view verb) const {
  Gate::Admission caller = gate_->Check(context, verb);
  if (!caller.ok() || gate_->has_file() || IsOpen(verb)) return caller;
  caller.status = {
      grpc::StatusCode::PERMISSION_DENIED,
      absl::StrCat(CounterName(verb), ": served on the admin socket only, ",
                   admin_socket_.empty() ? "and this prefixd has none"
                                         : absl::StrCat(admin_socket_, " on prefixd's host"),
                   "; this is where workers connect")};
  return caller;
}

AdminDoor::Reactor* AdminDoor::GetStats(Context* context, const Message* request, Message* reply) {
  const Gate::Admission caller = Check(*context, "Admin.GetStats");
  if (!caller.ok()) return Answer(context, caller.status);
  if (caller.sees_all()) return inside_->GetStats(context, request, reply);
  return dispatch_->Serve<v1::GetStatsRequest, v1::GetStatsReply>(
      context, {.name = "rpc.get_stats", .of_people = true}, request, reply,
      [this, tenant = caller.tenant](auto* call) {
        dispatch_->QuickAdmin(call, [=, this] {
          if (gate_->has_file()) {
            WriteOwnStats(tenant, call->reply());
          } else {
            inside_->WriteSums(call->reply());
          }
          return absl::OkStatus();
        });
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

AdminDoor::Reactor* AdminDoor::ListSpaces(Context* context, const Message* request,
                                          Message* reply) {
  const Gate::Admission caller = Check(*context, "Admin.ListSpaces");
  if (!caller.ok()) return Answer(context, caller.status);
  if (caller.sees_all()) return inside_->ListSpaces(context, request, reply);
  return dispatch_->Serve<v1::ListSpacesRequest, v1::ListSpacesReply>(
      context, {.name = "rpc.list_spaces", .of_people = true}, request, reply,
      [this, tenant = caller.tenant](auto* call) {
        dispatch_->QuickAdmin(
            call, [=, this] { return WriteOwnSpaces(tenant, *call->request(), call->reply()); });
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

AdminDoor::Reactor* AdminDoor::Clear(Context* context, const Message* request, Message* reply) {
  const Gate::Admission caller = Check(*context, "Admin.Clear");
  if (!caller.ok()) return Answer(context, caller.status);
  if (caller.sees_all()) return inside_->Clear(context, request, reply);
  v1::ClearRequest clear;
  if (const absl::Status read = ReadSmall(*request, &clear); !read.ok())
    return Answer(context, ToGrpc(read));
  const grpc::Status may = MayClear(caller.tenant, clear);
  return may.ok() ? inside_->Clear(context, request, reply) : Answer(context, may);
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

EventStreams::Reactor* AdminDoor::WatchEvents(Context* context, const Message* request) {
  const Gate::Admission caller = Check(*context, "Admin.WatchEvents");
  if (!caller.ok()) return new RefusedStream(caller.status);
  return inside_->WatchEventsAs(gate_->Follow(caller, context), request);
}

}  // namespace prefixd::daemon
