// The calls of prefixctl. Each is one RPC, or the few that it needs, with one deadline.
//
// Not for concurrent use. Errors keep the daemon's message and code. Unavailable and
// DeadlineExceeded mean that no daemon answered.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "grpc/health/v1/health.grpc.pb.h"
#include "prefixd/v1/admin.grpc.pb.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"
#include "wire/bearer.h"

namespace prefixd::cli {

class DaemonCalls {
 public:
  struct Where {
    std::string server;                            // address for workers' calls, as gRPC takes it
    std::string admin;                             // address for Admin calls; may be the same
    std::shared_ptr<const wire::Bearer> bearer{};  // sent with every call to `server`; may be null
  };
  // Connects with the first call. `timeout` limits each method below.
  DaemonCalls(const Where& where, std::chrono::milliseconds timeout);

  // Returns "serving", "loading its index" (hits may be shorter until it has), "draining" (it is
  // about to stop) or "unknown" (it has no health service).
  absl::StatusOr<std::string> Health();
  absl::StatusOr<v1::GetStatsReply> GetStats();
  absl::StatusOr<v1::ListSpacesReply> ListSpaces(const v1::ListSpacesRequest& request);
  absl::StatusOr<v1::ClearReply> Clear(const v1::ClearRequest& request);
  // `on_dirty` is told a few times a second how many bytes are in RAM only.
  absl::StatusOr<v1::FlushReply> Flush(const std::function<void(uint64_t dirty_bytes)>& on_dirty);
  absl::StatusOr<v1::VerifyReply> Verify(const v1::VerifyRequest& request);
  absl::StatusOr<v1::GetConfigReply> GetConfig();
  absl::StatusOr<v1::ListSessionsReply> ListSessions();
  absl::StatusOr<v1::ListLeasesReply> ListLeases();
  absl::StatusOr<v1::EndSessionReply> EndSession(uint64_t session);
  absl::StatusOr<v1::ListPinsReply> ListPins();
  absl::StatusOr<v1::SetBudgetsReply> SetBudgets(const v1::SetBudgetsRequest& request);
  absl::StatusOr<v1::SetSpaceLimitsReply> SetSpaceLimits(const v1::SetSpaceLimitsRequest& request);
  absl::StatusOr<v1::ListPrefixesReply> ListPrefixes(const v1::ListPrefixesRequest& request);
  // Calls `take` for each reply until it returns false (then OK) or the daemon ends the stream. Has
  // no deadline.
  absl::Status WatchEvents(const v1::WatchEventsRequest& request,
                           const std::function<bool(const v1::WatchEventsReply&)>& take);
  absl::StatusOr<v1::WhyReply> Why(const v1::WhyRequest& request);
  // Attaches as Match() does. The pin outlives that session.
  absl::StatusOr<v1::PinReply> Pin(const v1::ListSpacesReply::Space& space,
                                   const std::vector<uint32_t>& tokens,
                                   std::chrono::milliseconds ttl);
  absl::StatusOr<v1::UnpinReply> Unpin(uint64_t pin);
  absl::StatusOr<v1::UnpinReply> Unpin(const v1::ListSpacesReply::Space& space,
                                       const std::vector<uint32_t>& tokens);
  // Attaches, opens the space by its identity, matches, detaches. FailedPrecondition if the
  // identity leads this connection to another space because the tenants differ.
  absl::StatusOr<v1::Answer> Match(const v1::ListSpacesReply::Space& space,
                                   const std::vector<uint32_t>& tokens);
  // Tells the daemon that the prompt will be asked for.
  absl::StatusOr<v1::PrefetchReply::Hint> Prefetch(const v1::ListSpacesReply::Space& space,
                                                   const std::vector<uint32_t>& tokens);

 private:
  using Clock = std::chrono::system_clock;

  absl::StatusOr<bool> IsServing(const std::string& service);  // empty: the whole server
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                     const Request&, Reply*),
                             const Request& request);
  // Attaches, opens the prompt's space, calls `ask` with the session and the sequence, and
  // detaches.
  template <typename Reply, typename Ask>
  absl::StatusOr<Reply> InSession(const v1::ListSpacesReply::Space& space,
                                  const std::vector<uint32_t>& tokens, const Ask& ask);
  absl::StatusOr<v1::Sequence> Open(uint64_t session, const v1::ListSpacesReply::Space& space,
                                    const std::vector<uint32_t>& tokens, Clock::time_point end);

  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Admin::Stub> admin_;
  const std::unique_ptr<v1::PrefixCache::Stub> cache_;
  const std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

}  // namespace prefixd::cli
