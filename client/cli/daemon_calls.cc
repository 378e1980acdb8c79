#include "client/cli/daemon_calls.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include <future>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "wire/grpc_status.h"
#include "wire/target.h"

namespace prefixd::cli {
namespace {

std::shared_ptr<grpc::Channel> Connect(const std::string& address,
                                       const std::shared_ptr<const wire::Bearer>& bearer) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // the daemon is on this host
  arguments.SetMaxReceiveMessageSize(-1);           // a list of spaces may be of any size
  const absl::StatusOr<wire::Target> target = wire::TargetOf(address);
  if (!target.ok()) {  // commands.cc has said why
    return grpc::CreateCustomChannel("unix:/nonexistent/prefixd.sock",
                                     grpc::InsecureChannelCredentials(), arguments);
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      target->address, target->credentials, arguments, wire::Carrying(bearer));
}

// Returns a request about one sequence.
v1::AcquireRequest About(uint64_t session, const v1::Sequence& sequence) {
  v1::AcquireRequest request;
  request.set_session(session);
  *request.add_items()->mutable_sequence() = sequence;
  return request;
}

}  // namespace

DaemonCalls::DaemonCalls(const Where& where, std::chrono::milliseconds timeout)
    : timeout_(timeout),
      channel_(Connect(where.server, where.bearer)),
      admin_(v1::Admin::NewStub(where.admin == where.server ? channel_
                                                            : Connect(where.admin, nullptr))),
      cache_(v1::PrefixCache::NewStub(channel_)),
      health_(grpc::health::v1::Health::NewStub(channel_)) {}

template <typename Request, typename Reply>
absl::StatusOr<Reply> DaemonCalls::Call(
    grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
    const Request& request) {
  grpc::ClientContext context;
  context.set_deadline(Clock::now() + timeout_);
  Reply reply;
  PREFIXD_RETURN_IF_ERROR(wire::FromGrpc((*admin_.*method)(&context, request, &reply)));
  return reply;
}

absl::StatusOr<bool> DaemonCalls::IsServing(const std::string& service) {
  grpc::ClientContext context;
  context.set_deadline(Clock::now() + timeout_);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  PREFIXD_RETURN_IF_ERROR(wire::FromGrpc(health_->Check(&context, request, &response)));
  return response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

absl::StatusOr<std::string> DaemonCalls::Health() {
  const absl::StatusOr<bool> whole = IsServing("");
  if (absl::IsUnimplemented(whole.status())) return "unknown";
  if (!whole.ok()) return whole.status();
  if (!*whole) return "draining";
  const absl::StatusOr<bool> cache = IsServing(v1::PrefixCache::service_full_name());
  if (absl::IsNotFound(cache.status())) return "serving";  // an older prefixd
  if (!cache.ok()) return cache.status();
  return *cache ? "serving" : "loading its index";
}

absl::StatusOr<v1::GetStatsReply> DaemonCalls::GetStats() {
  return Call(&v1::Admin::Stub::GetStats, v1::GetStatsRequest());
}
absl::StatusOr<v1::ListSpacesReply> DaemonCalls::ListSpaces(const v1::ListSpacesRequest& request) {
  return Call(&v1::Admin::Stub::ListSpaces, request);
}
absl::StatusOr<v1::ClearReply> DaemonCalls::Clear(const v1::ClearRequest& request) {
  return Call(&v1::Admin::Stub::Clear, request);
}
absl::StatusOr<v1::FlushReply> DaemonCalls::Flush(
    const std::function<void(uint64_t dirty_bytes)>& on_dirty) {
  constexpr std::chrono::milliseconds kBetween(250);
  std::future<absl::StatusOr<v1::FlushReply>> flushed = std::async(
      std::launch::async, [&] { return Call(&v1::Admin::Stub::Flush, v1::FlushRequest()); });
  while (flushed.wait_for(kBetween) != std::future_status::ready) {
    const absl::StatusOr<v1::GetStatsReply> stats = GetStats();
    if (stats.ok()) on_dirty(stats->dirty_bytes());
  }
  return flushed.get();
}
absl::StatusOr<v1::GetConfigReply> DaemonCalls::GetConfig() {
  return Call(&v1::Admin::Stub::GetConfig, v1::GetConfigRequest());
}

absl::StatusOr<v1::ListSessionsReply> DaemonCalls::ListSessions() {
  return Call(&v1::Admin::Stub::ListSessions, v1::ListSessionsRequest());
}
absl::StatusOr<v1::ListLeasesReply> DaemonCalls::ListLeases() {
  return Call(&v1::Admin::Stub::ListLeases, v1::ListLeasesRequest());
}
absl::StatusOr<v1::EndSessionReply> DaemonCalls::EndSession(uint64_t session) {
  v1::EndSessionRequest request;
  request.set_session(session);
  return Call(&v1::Admin::Stub::EndSession, request);
}

absl::StatusOr<v1::ListPinsReply> DaemonCalls::ListPins() {
  return Call(&v1::Admin::Stub::ListPins, v1::ListPinsRequest());
}

absl::StatusOr<v1::SetBudgetsReply> DaemonCalls::SetBudgets(const v1::SetBudgetsRequest& request) {
  return Call(&v1::Admin::Stub::SetBudgets, request);
}
absl::StatusOr<v1::SetSpaceLimitsReply> DaemonCalls::SetSpaceLimits(
    const v1::SetSpaceLimitsRequest& request) {
  return Call(&v1::Admin::Stub::SetSpaceLimits, request);
}
absl::StatusOr<v1::ListPrefixesReply> DaemonCalls::ListPrefixes(
    const v1::ListPrefixesRequest& request) {
  return Call(&v1::Admin::Stub::ListPrefixes, request);
}

absl::StatusOr<v1::WhyReply> DaemonCalls::Why(const v1::WhyRequest& request) {
  return Call(&v1::Admin::Stub::Why, request);
}

absl::Status DaemonCalls::WatchEvents(
    const v1::WatchEventsRequest& request,
    const std::function<bool(const v1::WatchEventsReply&)>& take) {
  grpc::ClientContext context;
  const auto stream = admin_->WatchEvents(&context, request);
  v1::WatchEventsReply reply;
  bool more = true;
  while (more && stream->Read(&reply)) more = take(reply);
  if (!more) context.TryCancel();
  const grpc::Status status = stream->Finish();
  return more ? wire::FromGrpc(status) : absl::OkStatus();
}

template <typename Reply, typename Ask>
absl::StatusOr<Reply> DaemonCalls::InSession(const v1::ListSpacesReply::Space& space,
                                             const std::vector<uint32_t>& tokens, const Ask& ask) {
  const Clock::time_point end = Clock::now() + timeout_;
  grpc::ClientContext context;
  context.set_deadline(end);
  v1::AttachRequest attach;
  attach.set_worker("prefixctl");
  attach.set_protocol(1);
  attach.set_library("prefixctl");
  const auto stream = cache_->Attach(&context, attach);
  v1::SessionEvent event;
  if (!stream->Read(&event) || !event.has_attached()) {
    const absl::Status status = wire::FromGrpc(stream->Finish());
    return status.ok() ? absl::UnavailableError("attach: the stream ended at once") : status;
  }
  const uint64_t session = event.attached().session();
  const absl::StatusOr<v1::Sequence> sequence = Open(session, space, tokens, end);
  Reply reply;
  absl::Status status = sequence.status();
  if (status.ok()) {
    grpc::ClientContext asked;
    asked.set_deadline(end);
    status = wire::FromGrpc(ask(&asked, session, *sequence, &reply));
  }
  context.TryCancel();  // the session ends with its stream
  while (stream->Read(&event)) {
  }
  (void)stream->Finish();  // this is the status of the cancel
  if (!status.ok()) return status;
  return reply;
}

absl::StatusOr<v1::Sequence> DaemonCalls::Open(uint64_t session,
                                               const v1::ListSpacesReply::Space& space,
                                               const std::vector<uint32_t>& tokens,
                                               Clock::time_point end) {
  grpc::ClientContext context;
  context.set_deadline(end);
  v1::OpenSpaceRequest open;
  open.set_session(session);
  *open.mutable_identity() = space.identity();
  v1::OpenSpaceReply opened;
  PREFIXD_RETURN_IF_ERROR(wire::FromGrpc(cache_->OpenSpace(&context, open, &opened)));
  if (opened.space_id() != space.stats().space_id()) {
    return absl::FailedPreconditionError(
        absl::StrCat("match: the space belongs to tenant ", space.tenant(),
                     ", this connection to another one; connect as that tenant's workers do"));
  }
  v1::Sequence sequence;
  sequence.set_space(opened.space());
  sequence.mutable_tokens()->Assign(tokens.begin(), tokens.end());
  return sequence;
}

absl::StatusOr<v1::Answer> DaemonCalls::Match(const v1::ListSpacesReply::Space& space,
                                              const std::vector<uint32_t>& tokens) {
  PREFIXD_ASSIGN_OR_RETURN(
      const v1::AcquireReply reply,
      InSession<v1::AcquireReply>(
          space, tokens,
          [this](auto* context, uint64_t session, const v1::Sequence& sequence, auto* to) {
            return cache_->Match(context, About(session, sequence), to);
          }));
  if (reply.answers_size() != 1) {
    return absl::InternalError(
        absl::StrCat("match: the daemon gave ", reply.answers_size(), " answers to one question"));
  }
  return reply.answers(0);
}

absl::StatusOr<v1::VerifyReply> DaemonCalls::Verify(const v1::VerifyRequest& request) {
  return Call(&v1::Admin::Stub::Verify, request);
}

absl::StatusOr<v1::PrefetchReply::Hint> DaemonCalls::Prefetch(
    const v1::ListSpacesReply::Space& space, const std::vector<uint32_t>& tokens) {
  PREFIXD_ASSIGN_OR_RETURN(
      const v1::PrefetchReply reply,
      InSession<v1::PrefetchReply>(
          space, tokens,
          [this](auto* context, uint64_t session, const v1::Sequence& sequence, auto* to) {
            return cache_->Prefetch(context, About(session, sequence), to);
          }));
  if (reply.hints_size() == 1) return reply.hints(0);
  return absl::InternalError(
      absl::StrCat("prefetch: the daemon gave ", reply.hints_size(), " answers to one hint"));
}

absl::StatusOr<v1::PinReply> DaemonCalls::Pin(const v1::ListSpacesReply::Space& space,
                                              const std::vector<uint32_t>& tokens,
                                              std::chrono::milliseconds ttl) {
  return InSession<v1::PinReply>(
      space, tokens,
      [&](auto* context, uint64_t session, const v1::Sequence& sequence, auto* reply) {
        v1::PinRequest request;
        request.set_session(session);
        *request.mutable_sequence() = sequence;
        request.set_ttl_ms(static_cast<uint64_t>(ttl.count()));
        return cache_->Pin(context, request, reply);
      });
}

absl::StatusOr<v1::UnpinReply> DaemonCalls::Unpin(uint64_t pin) {
  grpc::ClientContext context;
  context.set_deadline(Clock::now() + timeout_);
  v1::UnpinRequest request;
  request.set_pin(pin);
  v1::UnpinReply reply;
  PREFIXD_RETURN_IF_ERROR(wire::FromGrpc(cache_->Unpin(&context, request, &reply)));
  return reply;
}

absl::StatusOr<v1::UnpinReply> DaemonCalls::Unpin(const v1::ListSpacesReply::Space& space,
                                                  const std::vector<uint32_t>& tokens) {
  return InSession<v1::UnpinReply>(
      space, tokens,
      [&](auto* context, uint64_t session, const v1::Sequence& sequence, auto* reply) {
        v1::UnpinRequest request;
        request.set_session(session);
        *request.mutable_sequence() = sequence;
        return cache_->Unpin(context, request, reply);
      });
}

}  // namespace prefixd::cli
