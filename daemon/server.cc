#include "daemon/server.h"

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <optional>

#include "absl/strings/str_cat.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"

#include "base/status.h"
#include "daemon/admin_service.h"
#include "daemon/dispatch.h"
#include "daemon/fd_socket.h"
#include "daemon/prefix_cache_service.h"
#include "daemon/sessions.h"
#include "daemon/socket_guard.h"
#include "grpc/grpc.h"
#include "wire/bulk_channel.h"
#include "wire/limits.h"

namespace prefixd::daemon {
namespace {

class GrpcServer final : public Server {
 public:
  GrpcServer(cache::Cache* cache, const ServerOptions& options)
      : cache_(cache),
        fd_path_(cache->arena().shared && !options.socket.empty() ? FdSocketPath(options.socket)
                                                                  : ""),
        dispatch_(cache, options.threads),
        sessions_(cache, options.version, std::filesystem::path(fd_path_).filename()),
        prefix_cache_(cache, &sessions_, &dispatch_,
                      options.socket.empty() ? "" : "unix:" + options.socket),
        admin_(cache, &sessions_, &dispatch_, options.version, options.settings) {}
  ~GrpcServer() override { Stop(); }

  absl::Status Listen(const ServerOptions& options);
  int port() const override { return port_; }
  bool idle() const override { return dispatch_.idle(); }
  void BeginDrain(uint32_t deadline_ms) override {
    server_->GetHealthCheckService()->SetServingStatus(false);
    sessions_.Drain(deadline_ms);
  }
  void Stop() override {
    if (server_ == nullptr) return;
    sessions_.EndAll();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    server_->Wait();
  }

 private:
  void Configure(grpc::ServerBuilder* builder);

  cache::Cache* const cache_;
  const std::string fd_path_;  // empty: no arena to hand out
  std::optional<SocketGuard> guard_;
  std::unique_ptr<FdSocket> fd_socket_;
  Dispatch dispatch_;
  Sessions sessions_;
  PrefixCacheService prefix_cache_;
  AdminService admin_;
  std::unique_ptr<grpc::Server> server_;  // last: goes first
  int port_ = 0;
};

void GrpcServer::Configure(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(wire::kMaxTokenMessageBytes));
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT,
                              0);  // a port in use is an error, not a second owner
  // A peer that is gone without a word is noticed, and so its leases are freed.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  wire::SetBulkArguments(wire::ConnectionWindow::kNarrow, [builder](const char* name, int value) {
    builder->AddChannelArgument(name, value);
  });
  builder->RegisterService(&prefix_cache_);
  builder->RegisterService(&admin_);
}

absl::Status GrpcServer::Listen(const ServerOptions& options) {
  grpc::ServerBuilder builder;
  Configure(&builder);
  int socket_bound = 1;
  if (!options.socket.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(guard_, SocketGuard::Claim(options.socket));
    builder.AddListeningPort("unix:" + options.socket, grpc::InsecureServerCredentials(),
                             &socket_bound);
  }
  if (!fd_path_.empty()) {  // before anybody is told of it
    PREFIXD_ASSIGN_OR_RETURN(
        fd_socket_, FdSocket::Listen(fd_path_, [this](const cache::SessionKey& key, uint64_t pid) {
          return cache_->OpenFiles(key, pid);
        }));
  }
  if (!options.listen.empty()) {
    builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port_);
  }
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || socket_bound == 0 || (!options.listen.empty() && port_ == 0)) {
    return absl::FailedPreconditionError(absl::StrCat("server: cannot listen on ", options.socket,
                                                      options.socket.empty() ? "" : " ",
                                                      options.listen, ": in use, or not allowed"));
  }
  if (!options.socket.empty()) ::chmod(options.socket.c_str(), 0660);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(cache::Cache* cache,
                                                      const ServerOptions& options) {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    // The last user's grpc_shutdown() of gRPC 1.51 may wait 10 s for its own poller: keep it up
    // until the process ends.
    grpc_init();
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  auto server = std::make_unique<GrpcServer>(cache, options);
  PREFIXD_RETURN_IF_ERROR(server->Listen(options));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace prefixd::daemon
