#include "daemon/server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_posix.h"
#include "spdlog/spdlog.h"

#include "base/mutex.h"
#include "base/status.h"
#include "daemon/access/admin_door.h"
#include "daemon/access/audit.h"
#include "daemon/access/audit_log.h"
#include "daemon/access/gate.h"
#include "daemon/admin_service.h"
#include "daemon/direct_calls.h"
#include "daemon/dispatch.h"
#include "daemon/fd_socket.h"
#include "daemon/inbound.h"
#include "daemon/log.h"
#include "daemon/prefix_cache_service.h"
#include "daemon/sessions.h"
#include "daemon/socket_guard.h"
#include "daemon/token_door.h"
#include "daemon/unix_listener.h"
#include "grpc/grpc.h"
#include "grpc/health/v1/health.pb.h"
#include "wire/bulk_channel.h"
#include "wire/limits.h"

namespace prefixd::daemon {
namespace {

constexpr int kMaxStreamsOfConnection = 1024;
// Size of the buffer of a connection that brings much; gRPC keeps one for each connection, and a
// whole one for each message of which a byte stands in it. Its own size is 4 MiB.
constexpr int kMaxReadBytes = 64 << 10;
// How long new connections wait for the memory of one that was cut; a worker's first try to connect
// may take 2 s (client.h).
constexpr std::chrono::milliseconds kPatienceWithCut(500);
constexpr size_t kAdminMessageBytes = size_t{16} << 20;
constexpr uint64_t kStreamBytes = uint64_t{1} << 20;  // for streams and headers beside one message

// Returns the messages' memory for workers on this host: all, or a half if TCP has the other half.
uint64_t PartOfMessages(const ServerOptions& options) {
  return options.listen.empty() ? options.message_bytes : options.message_bytes / 2;
}

// Returns that of workers on TCP. gRPC counts what it read until it is freed: one Put keeps several
// pieces, and TLS has buffers of its own. With less, gRPC cuts off a worker that is alone.
uint64_t TcpMessages(const ServerOptions& options) {
  return std::max(PartOfMessages(options), options.token_message_bytes + 8 * wire::kMaxPieceBytes);
}

class GrpcServer final : public Server {
 public:
  GrpcServer(cache::Cache* cache, const ServerOptions& options)
      : cache_(cache),
        options_(options),
        fd_path_(cache->arena().shared && !options.socket.empty() ? FdSocketPath(options.socket)
                                                                  : ""),
        dispatch_(cache, options.threads, options.token_message_bytes, options.streams,
                  options.tracer),
        sessions_(cache, options.version, std::filesystem::path(fd_path_).filename(),
                  static_cast<size_t>(options.max_sessions),
                  options.tracer == nullptr ? nullptr : &options.tracer->loads()),
        gate_(cache, options.token, options.access_file),
        prefix_cache_(cache, &sessions_, &dispatch_, &gate_, options.slow_request),
        admin_(cache, &sessions_, &dispatch_, options.version, options.settings),
        admin_door_(&admin_, cache, &dispatch_, &gate_, options.admin_socket),
        door_(&prefix_cache_, &gate_),
        inbound_(std::max(PartOfMessages(options), options.token_message_bytes + kStreamBytes),
                 [cache](const std::string& why) {
                   cache->Count("connections.cut");
                   spdlog::warn("{}", why);
                 }) {
    gate_.set_end_session([this](block::SessionId session, const grpc::Status& status) {
      sessions_.EndBecause(session, status);
    });
    if (gate_.has_file()) {
      dispatch_.set_session_check(
          [this](const grpc::ServerContextBase& context, block::SessionId session) {
            return gate_.CheckSession(context, session);
          });
    }
    OfferDirectCalls();
    tcp_messages_.Resize(TcpMessages(options));
    admin_messages_.Resize(kAdminMessageBytes);
  }
  ~GrpcServer() override { Stop(); }

  // Opens the admin socket first: whoever waits for the workers' socket finds both.
  absl::Status Listen(ServerClaims claims) {
    PREFIXD_ASSIGN_OR_RETURN(audit_, AuditLog::Open(options_.audit_log));
    PREFIXD_RETURN_IF_ERROR(gate_.Open(audit_));
    PREFIXD_RETURN_IF_ERROR(ListenForPeople(std::move(claims.admin_socket)));
    PREFIXD_RETURN_IF_ERROR(ListenOnTcp());
    PREFIXD_RETURN_IF_ERROR(ListenForWorkers(std::move(claims.socket)));
    SayServing(v1::Admin::service_full_name(), true);
    SayServing(v1::PrefixCache::service_full_name(),
               cache_->WaitLoaded(std::chrono::steady_clock::now()));
    return absl::OkStatus();
  }
  int port() const override { return port_; }
  bool idle() const override { return dispatch_.idle(); }
  std::string health() const override {
    const base::MutexLock lock(health_mutex_);
    if (draining_) return "draining";
    return cache_->WaitLoaded(std::chrono::steady_clock::now()) ? "serving" : "loading";
  }
  std::vector<Setting> settings() const override { return admin_.settings(); }
  void SayLoaded() override {
    const base::MutexLock lock(health_mutex_);
    if (!draining_) SayServing(v1::PrefixCache::service_full_name(), true);
  }
  void BeginDrain(uint32_t deadline_ms) override {
    {
      const base::MutexLock lock(health_mutex_);
      draining_ = true;
      for (const auto& server : servers_) server->GetHealthCheckService()->SetServingStatus(false);
    }
    sessions_.Drain(deadline_ms);
  }
  void Stop() override {
    if (std::exchange(stopped_, true)) return;
    if (listener_ != nullptr) listener_->Close();
    if (admin_listener_ != nullptr) admin_listener_->Close();
    sessions_.EndAll();
    admin_.StopEvents();
    fd_socket_ = nullptr;
    const auto end = std::chrono::system_clock::now() + std::chrono::seconds(1);
    for (const auto& server : servers_) server->Shutdown(end);
    for (const auto& server : servers_) server->Wait();
    direct_calls_ = nullptr;
    if (tls_ != nullptr) WatchTlsRefusals(nullptr);
  }

 private:
  // Registers what workers call, and has calls of Admin written down.
  void ServeWorkers(bool tcp, grpc::ServerBuilder* builder);
  void Audit(const Gate* gate, grpc::ServerBuilder* builder);
  void OfferDirectCalls();
  FdSocket::Calls ForFiles();
  // Tells who asks gRPC's health check.
  void SayServing(const std::string& service, bool serving) {
    for (const auto& server : servers_) {
      server->GetHealthCheckService()->SetServingStatus(service, serving);
    }
  }
  absl::Status ListenForWorkers(std::optional<SocketGuard> claim);
  absl::Status ListenForPeople(std::optional<SocketGuard> claim);
  absl::Status ListenOnTcp();

  cache::Cache* const cache_;
  const ServerOptions options_;
  const std::string fd_path_;  // empty if there is no arena to hand out
  Dispatch dispatch_;
  Sessions sessions_;
  Gate gate_;
  std::shared_ptr<AuditLog> audit_;
  PrefixCacheService prefix_cache_;
  AdminService admin_;
  AdminDoor admin_door_;
  TokenDoor door_;
  std::unique_ptr<DirectCalls> direct_calls_;  // null: all calls go by gRPC
  std::unique_ptr<FdSocket> fd_socket_;
  std::shared_ptr<grpc::ServerCredentials> tls_;  // used by the server on TCP until it ends
  // Quotas of their own: people get through while workers send too much, and workers of this host
  // while those on TCP do, whose connections gRPC accepts itself.
  grpc::ResourceQuota tcp_messages_{"prefixd tcp"}, admin_messages_{"prefixd admin"};
  std::unique_ptr<UnixListener> listener_, admin_listener_;
  Inbound inbound_;  // watches the workers' socket
  std::vector<std::unique_ptr<grpc::Server>> servers_;
  int port_ = 0;
  mutable base::Mutex health_mutex_;
  bool draining_ PREFIXD_GUARDED_BY(health_mutex_) = false;
  bool stopped_ = false;
};

// gRPC 1.51 looks at a message's size when it has received all of it, and takes as many messages as
// a peer begins: where Inbound does not look, only gRPC's quota of memory bounds them. gRPC would
// also unpack a compressed message of any size, so compression is refused.
void Configure(uint64_t message_bytes, grpc::ServerBuilder* builder) {
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP})
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsOfConnection);
  builder->AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kMaxReadBytes);
  builder->SetMaxReceiveMessageSize(static_cast<int>(message_bytes));
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT,
                              0);  // a port in use is an error, not a second owner
  // Keepalive notices a peer that is gone without a word, so that its leases are freed.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  wire::SetBulkArguments(wire::ConnectionWindow::kNarrow, [builder](const char* name, int value) {
    builder->AddChannelArgument(name, value);
  });
}

absl::Status CannotListen(const std::string& where) {
  return absl::FailedPreconditionError(
      absl::StrCat("server: cannot listen on ", where, ": in use, or not allowed"));
}

void GrpcServer::Audit(const Gate* gate, grpc::ServerBuilder* builder) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(Auditing(gate, audit_));
  builder->experimental().SetInterceptorCreators(std::move(factories));
}

// Where each call is looked at, or traced, calls go by gRPC.
void GrpcServer::OfferDirectCalls() {
  if (fd_path_.empty() || gate_.has_file() || options_.tracer != nullptr) return;
  direct_calls_ = std::make_unique<DirectCalls>(cache_, &sessions_, &dispatch_, &prefix_cache_);
  sessions_.set_direct_calls();
  sessions_.set_on_end([this](block::SessionId session) { direct_calls_->End(session); });
}

FdSocket::Calls GrpcServer::ForFiles() {
  FdSocket::Calls calls;
  calls.open = [this](const cache::SessionKey& key, const base::Peer& peer) {
    return cache_->OpenFiles(key, peer);
  };
  if (direct_calls_ == nullptr) return calls;
  calls.keep = [this](base::Descriptor connection, block::SessionId session) {
    direct_calls_->Serve(std::move(connection), session);
  };
  return calls;
}

void GrpcServer::ServeWorkers(bool tcp, grpc::ServerBuilder* builder) {
  const bool gated = tcp || gate_.has_file();
  builder->RegisterService(gated ? static_cast<grpc::Service*>(&door_) : &prefix_cache_);
  builder->RegisterService(&admin_door_);
  Audit(&gate_, builder);
}

absl::Status GrpcServer::ListenForWorkers(std::optional<SocketGuard> claim) {
  if (options_.socket.empty()) return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(listener_, UnixListener::Listen(options_.socket, {}, std::move(claim)));
  if (!fd_path_.empty()) {  // opened before any worker is told of it
    PREFIXD_ASSIGN_OR_RETURN(fd_socket_, FdSocket::Listen(fd_path_, ForFiles()));
  }
  grpc::ServerBuilder builder;
  Configure(options_.token_message_bytes, &builder);
  ServeWorkers(false, &builder);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return CannotListen(options_.socket);
  servers_.push_back(std::move(server));
  listener_->Start([this, workers = servers_.back().get()](int fd) {
    inbound_.WaitForRoom(kPatienceWithCut);
    inbound_.Watch(fd);
    grpc::AddInsecureChannelFromFd(workers, fd);
  });
  return absl::OkStatus();
}

absl::Status GrpcServer::ListenForPeople(std::optional<SocketGuard> claim) {
  if (options_.admin_socket.empty()) return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(
      admin_listener_,
      UnixListener::Listen(
          options_.admin_socket,
          {.mode = options_.admin_group.has_value() ? 0660u : 0600u, .group = options_.admin_group},
          std::move(claim)));
  grpc::ServerBuilder builder;
  Configure(options_.token_message_bytes, &builder);
  builder.SetResourceQuota(admin_messages_);
  builder.RegisterService(&admin_);
  Audit(nullptr, &builder);
  servers_.push_back(builder.BuildAndStart());
  if (servers_.back() == nullptr) {
    servers_.pop_back();
    return CannotListen(options_.admin_socket);
  }
  admin_listener_->Start(
      [server = servers_.back().get()](int fd) { grpc::AddInsecureChannelFromFd(server, fd); });
  return absl::OkStatus();
}

absl::Status GrpcServer::ListenOnTcp() {
  if (options_.listen.empty()) return absl::OkStatus();
  if (!options_.token.has_value() && !gate_.has_file()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "server: ", options_.listen, " wants a token: any user of this host connects"));
  }
  grpc::ServerBuilder builder;
  Configure(options_.token_message_bytes, &builder);
  builder.SetResourceQuota(tcp_messages_);
  if (!options_.tls.certificate.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(tls_, MakeTls(options_.tls));
    WatchTlsRefusals([this](const std::string& why) { gate_.NoteTlsRefusal(why); });
  }
  builder.AddListeningPort(options_.listen,
                           tls_ != nullptr ? tls_ : grpc::InsecureServerCredentials(), &port_);
  ServeWorkers(true, &builder);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port_ == 0) return CannotListen(options_.listen);
  servers_.push_back(std::move(server));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(cache::Cache* cache,
                                                      const ServerOptions& options,
                                                      ServerClaims claims) {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    // In gRPC 1.51 the last user's grpc_shutdown() may wait 10 s for gRPC's own poller: keep gRPC
    // up until the process ends.
    grpc_init();
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    // gRPC serves health without its descriptor: this links it in, for reflection.
    grpc::health::v1::HealthCheckRequest::descriptor();
  });
  auto server = std::make_unique<GrpcServer>(cache, options);
  PREFIXD_RETURN_IF_ERROR(server->Listen(std::move(claims)));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace prefixd::daemon
