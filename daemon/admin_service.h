// The calls that people, scripts and routers make.
//
// Thread-safe. gRPC parses no message, as with the workers' calls (prefix_cache_service.h): a door
// before this one looks at the caller first.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"

#include "base/mutex.h"
#include "cache/cache.h"
#include "daemon/config.h"
#include "daemon/dispatch.h"
#include "daemon/event_streams.h"
#include "daemon/sessions.h"
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

class AdminService final : public internal::AllOfAdmin {
 public:
  using Reactor = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;
  using Message = grpc::ByteBuffer;

  // `cache`, `sessions` and `dispatch` must outlive this.
  AdminService(cache::Cache* cache, Sessions* sessions, Dispatch* dispatch, std::string version,
               std::vector<Setting> settings)
      : cache_(cache),
        sessions_(sessions),
        dispatch_(dispatch),
        version_(std::move(version)),
        settings_(std::move(settings)) {}

  Reactor* GetStats(Context* context, const Message* request, Message* reply) override;
  Reactor* ListSpaces(Context* context, const Message* request, Message* reply) override;
  Reactor* Clear(Context* context, const Message* request, Message* reply) override;
  Reactor* Flush(Context* context, const Message* request, Message* reply) override;
  Reactor* Verify(Context* context, const Message* request, Message* reply) override;
  Reactor* GetConfig(Context* context, const Message* request, Message* reply) override;
  Reactor* ListSessions(Context* context, const Message* request, Message* reply) override;
  Reactor* ListLeases(Context* context, const Message* request, Message* reply) override;
  Reactor* EndSession(Context* context, const Message* request, Message* reply) override;
  Reactor* SetBudgets(Context* context, const Message* request, Message* reply) override;
  Reactor* SetSpaceLimits(Context* context, const Message* request, Message* reply) override;
  Reactor* Why(Context* context, const Message* request, Message* reply) override;
  Reactor* ListPrefixes(Context* context, const Message* request, Message* reply) override;
  Reactor* ListPins(Context* context, const Message* request, Message* reply) override;
  EventStreams::Reactor* WatchEvents(Context*, const Message* request) override {
    return WatchEventsAs(nullptr, request);
  }
  // The same; the stream keeps `held` as long as it lives.
  EventStreams::Reactor* WatchEventsAs(std::shared_ptr<void> held, const Message* request) {
    return events_.Watch(*request, std::move(held));
  }
  void StopEvents() { events_.Stop(); }  // before the server that runs this stops

  // Write what workers may know too. WriteSums: GetStats without spaces; may wait for the disk.
  // WriteConfig: GetConfig.
  void WriteSums(v1::GetStatsReply* reply) const;
  void WriteConfig(v1::GetConfigReply* reply) const;
  std::vector<Setting> settings() const PREFIXD_EXCLUDES(settings_mutex_);

 private:
  void DoGetStats(v1::GetStatsReply* reply) const;
  absl::Status DoListSpaces(const v1::ListSpacesRequest& request, v1::ListSpacesReply* reply);
  // Asks the store that hosts share.
  void AddOtherHosts(const block::SpaceIdentity& against, v1::ListSpacesReply* reply);
  absl::Status DoClear(const v1::ClearRequest& request, v1::ClearReply* reply);
  absl::Status DoFlush(const cache::Patience& patience, v1::FlushReply* reply);
  absl::Status DoVerify(const v1::VerifyRequest& request, const cache::Patience& patience,
                        v1::VerifyReply* reply);
  absl::Status DoSetBudgets(const v1::SetBudgetsRequest& request, v1::SetBudgetsReply* reply);
  // Notes a budget that SetBudgets has set, for GetConfig. Does nothing for 0.
  void NoteBudget(const char* name, uint64_t bytes) PREFIXD_EXCLUDES(settings_mutex_);
  absl::Status DoSetSpaceLimits(const v1::SetSpaceLimitsRequest& request,
                                v1::SetSpaceLimitsReply* reply);
  absl::Status DoWhy(const v1::WhyRequest& request, v1::WhyReply* reply) const;
  absl::Status DoListPrefixes(const v1::ListPrefixesRequest& request,
                              v1::ListPrefixesReply* reply) const;
  absl::Status DoEndSession(const v1::EndSessionRequest& request, v1::EndSessionReply* reply);

  cache::Cache* const cache_;
  Sessions* const sessions_;
  Dispatch* const dispatch_;
  EventStreams events_{cache_};
  const std::string version_;
  mutable base::Mutex settings_mutex_;
  std::vector<Setting> settings_ PREFIXD_GUARDED_BY(settings_mutex_);  // SetBudgets changes them
};

}  // namespace prefixd::daemon
