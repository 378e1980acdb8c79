#include "connection.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <random>
#include <system_error>
#include <utility>

namespace prefixd::client {
namespace {

constexpr std::chrono::milliseconds kShortestPause{20};
constexpr std::chrono::milliseconds kLongestPause{1000};
constexpr int kMaxReplyBytes = 64 << 20;  // the columns of 2^21 tokens in 64 groups fit

std::unique_ptr<Connection::Stub> MakeStub(const std::string& address) {
  // Keeps gRPC up until the process ends: the last user's grpc_shutdown() of gRPC 1.51 may wait 10
  // s for its own poller, and an engine that drops its Client must not.
  [[maybe_unused]] static const bool kept = (grpc_init(), true);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReplyBytes);
  arguments.SetMaxSendMessageSize(-1);                      // limits are the daemon's to say
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);          // a daemon is on this host or named
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // no other client's backoff
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return v1::PrefixCache::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

std::chrono::system_clock::time_point WallClock(base::Deadline deadline) {
  using std::chrono::system_clock;
  return system_clock::now() + std::chrono::duration_cast<system_clock::duration>(
                                   deadline - std::chrono::steady_clock::now());
}

Connection::Connection(std::string address, std::string name)
    : address_(std::move(address)), name_(std::move(name)), stub_(MakeStub(address_)) {}

void Connection::Start(std::function<void(const Session&)> on_attach) {
  on_attach_ = std::move(on_attach);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {  // no threads to be had: stays detached
    base::MutexLock lock(mutex_);
    tried_ = true;
  }
}

void Connection::Stop() {
  {
    base::MutexLock lock(mutex_);
    stopped_ = true;
    if (attached_with_ != nullptr) attached_with_->TryCancel();
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::optional<Session> Connection::session() const {
  base::MutexLock lock(mutex_);
  return session_;
}

absl::StatusOr<Session> Connection::RequireSession() const {
  if (std::optional<Session> session = this->session()) return *session;
  return absl::UnavailableError(absl::StrCat("client: no daemon at ", address_));
}

bool Connection::WaitAttached(base::Deadline deadline) const {
  base::MutexLock lock(mutex_);
  while (!session_ && !stopped_) {
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  }
  return session_.has_value();
}

void Connection::WaitFirstTry(base::Deadline deadline) const {
  base::MutexLock lock(mutex_);
  while (!session_ && !tried_ && !stopped_) {
    if (!changed_.WaitUntil(mutex_, deadline)) return;
  }
}

void Connection::Run() {
  std::minstd_rand random(std::random_device{}());
  std::chrono::milliseconds pause = kShortestPause;
  do {
    if (AttachOnce()) pause = kShortestPause;
    // Half of the pause is drawn, so that the workers of a restarted daemon do not come at once.
    const auto drawn = std::uniform_int_distribution<int64_t>(0, pause.count() / 2)(random);
    if (!Pause(pause / 2 + std::chrono::milliseconds(drawn))) return;
    pause = std::min(2 * pause, kLongestPause);
  } while (true);
}

bool Connection::AttachOnce() {
  grpc::ClientContext context;
  {
    base::MutexLock lock(mutex_);
    if (stopped_) return false;
    attached_with_ = &context;
  }
  v1::AttachRequest request;
  request.set_worker(name_);
  request.set_protocol(1);
  request.set_library("prefixd-cpp/0.1.0");
  const std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> events =
      stub_->Attach(&context, request);
  bool attached = false;
  for (v1::SessionEvent event; events->Read(&event);) {
    if (!event.has_attached() || attached) continue;
    const Session session{.id = event.attached().session(), .epoch = event.epoch()};
    on_attach_(session);
    Announce(session);
    attached = true;
  }
  {
    base::MutexLock lock(mutex_);
    attached_with_ = nullptr;
  }
  Announce(std::nullopt);
  events->Finish();
  return attached;
}

void Connection::Announce(std::optional<Session> session) {
  base::MutexLock lock(mutex_);
  session_ = session;
  tried_ = true;
  changed_.NotifyAll();
}

bool Connection::Pause(std::chrono::milliseconds pause) {
  const base::Deadline end = std::chrono::steady_clock::now() + pause;
  base::MutexLock lock(mutex_);
  while (!stopped_ && changed_.WaitUntil(mutex_, end)) {
  }
  return !stopped_;
}

}  // namespace prefixd::client
