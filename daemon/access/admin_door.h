// Serves Admin where workers connect: on their socket and on TCP. The gate looks at each caller
// first, by the name of the method; the message is read after that.
//
// With an access file the table of roles says who may call what, and a caller of one tenant sees
// and clears that tenant's spaces only. Without one, everybody who may store is told sums and
// settings; other calls are refused with the name of the admin socket, which serves them.
//
// Thread-safe.
#pragma once
#include <string>
#include <string_view>

#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/access/gate.h"
#include "daemon/admin_service.h"

namespace prefixd::daemon {

class AdminDoor final : public internal::AllOfAdmin {
 public:
  using Reactor = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;
  using Message = grpc::ByteBuffer;

  // All must outlive this. `admin_socket`: for the refusals; empty = there is none.
  AdminDoor(AdminService* inside, cache::Cache* cache, Dispatch* dispatch, Gate* gate,
            std::string admin_socket)
      : inside_(inside),
        cache_(cache),
        dispatch_(dispatch),
        gate_(gate),
        admin_socket_(std::move(admin_socket)) {}

  Reactor* GetStats(Context* context, const Message* request, Message* reply) override;
  Reactor* ListSpaces(Context* context, const Message* request, Message* reply) override;
  Reactor* Clear(Context* context, const Message* request, Message* reply) override;
  EventStreams::Reactor* WatchEvents(Context* context, const Message* request) override;

  Reactor* Flush(Context* context, const Message* request, Message* reply) override {
    return Pass("Admin.Flush", &AdminService::Flush, context, request, reply);
  }
  Reactor* Verify(Context* context, const Message* request, Message* reply) override {
    return Pass("Admin.Verify", &AdminService::Verify, context, request, reply);
  }
  Reactor* GetConfig(Context* context, const Message* request, Message* reply) override {
    return Pass("Admin.GetConfig", &AdminService::GetConfig, context, request, reply);
  }
  Reactor* ListSessions(Context* context, const Message* request, Message* reply) override {
    return Pass("Admin.ListSessions", &AdminService::ListSessions, context, request, reply);
  }
  Reactor* ListLeases(Context* context, const Message* request, Message* reply) override {
    return Pass("Admin.ListLeases", &AdminService::ListLeases, context, request, reply);
  }
  Reactor* EndSession(Context* context, const Message* request, Message* reply) override {
    return Pass("Admin.EndSession", &AdminService::EndSession, context, request, reply);
  }
  Reactor* ListPins(Context* context, const Message* request, Message* reply) override {
    return Pass("Admin.ListPins", &AdminService::ListPins, context, request, reply);
  }
  Reactor* SetBudgets(Context* context, const Message* request, Message* reply) override {
    return Pass("Admin.SetBudgets", &AdminService::SetBudgets, context, request, reply);
  }
  Reactor* SetSpaceLimits(Context* context, const Message* request, Message* reply) override {
    return Pass("Admin.SetSpaceLimits", &AdminService::SetSpaceLimits, context, request, reply);
  }
  Reactor* Why(Context* context, const Message* request, Message* reply) override {
    return Pass("Admin.Why", &AdminService::Why, context, request, reply);
  }
  Reactor* ListPrefixes(Context* context, const Message* request, Message* reply) override {
    return Pass("Admin.ListPrefixes", &AdminService::ListPrefixes, context, request, reply);
  }

 private:
  // Returns who may pass; Gate::Check, and without an access file what IsOpen says.
  Gate::Admission Check(const Context& context, std::string_view verb) const;
  using Verb = Reactor* (AdminService::*)(Context*, const Message*, Message*);
  Reactor* Pass(std::string_view name, Verb verb, Context* context, const Message* request,
                Message* reply) {
    const Gate::Admission caller = Check(*context, name);
    return caller.ok() ? (inside_->*verb)(context, request, reply) : Answer(context, caller.status);
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
  const std::string admin_socket_;
};

}  // namespace prefixd::daemon
