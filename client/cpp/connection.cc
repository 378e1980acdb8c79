#include "connection.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <random>
#include <system_error>
#include <utility>

#include "address.h"
#include "base/status.h"
#include "block/arena_file.h"
#include "fork_guard.h"
#include "unix_connections.h"
#include "wire/bulk_channel.h"

namespace prefixd::client {
namespace {

constexpr std::chrono::milliseconds kShortestPause{20};
constexpr std::chrono::milliseconds kLongestPause{1000};
constexpr int kMaxReplyBytes = 64 << 20;  // the columns of 2^21 tokens in 64 groups fit

constexpr std::chrono::milliseconds kFilesPatience{2000};
constexpr uint32_t kProtocol = 1;

std::shared_ptr<grpc::Channel> MakeChannel(const wire::Target& target,
                                           const std::shared_ptr<wire::Bearer>& bearer,
                                           wire::ConnectionWindow window) {
  // Keeps gRPC up until the process ends: the last user's grpc_shutdown() of gRPC 1.51 may wait 10
  // s for its own poller, and an engine that drops its Client must not.
  [[maybe_unused]] static const bool kept = (grpc_init(), true);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReplyBytes);
  arguments.SetMaxSendMessageSize(-1);              // the daemon sets the limits
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // a daemon is on this host, or named directly
  // A connection that no other channel shares, and no other client's backoff.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  wire::SetBulkArguments(
      window, [&arguments](const char* name, int value) { arguments.SetInt(name, value); });
  return grpc::experimental::CreateCustomChannelWithInterceptors(target.address, target.credentials,
                                                                 arguments, wire::Carrying(bearer));
}

// gRPC writes to stderr about an address that it does not understand.
wire::Target TargetOf(const absl::StatusOr<wire::Target>& target) {
  if (target.ok()) return *target;
  return {"unix:/nonexistent/prefixd.sock", grpc::InsecureChannelCredentials()};
}

absl::StatusOr<wire::Target> CheckedTarget(const std::string& address) {
  PREFIXD_RETURN_IF_ERROR(CheckAddress(address));
  return wire::TargetOf(address);
}

std::shared_ptr<wire::Bearer> BearerOf(const Connection::Options& options) {
  const std::string file = wire::TokenFileFor(options.address, options.token_file);
  return file.empty() ? nullptr : std::make_shared<wire::Bearer>(file);
}

// Returns "prefixd-cpp/0.1.0 (vllm 0.32.0)".
std::string LibraryName(const std::string& engine) {
  std::string name = "prefixd-cpp/0.1.0";
  if (!engine.empty()) absl::StrAppend(&name, " (", engine, ")");
  return name.substr(0, wire::kMaxWorkerBytes);
}

}  // namespace

std::chrono::system_clock::time_point WallClock(base::Deadline deadline) {
  using std::chrono::system_clock;
  return system_clock::now() + std::chrono::duration_cast<system_clock::duration>(
                                   deadline - std::chrono::steady_clock::now());
}

Connection::Connection(Options options) : Connection(options, CheckedTarget(options.address)) {}

Connection::Connection(Options options, const absl::StatusOr<wire::Target>& target)
    : options_(std::move(options)),
      address_status_(target.status()),
      bearer_(BearerOf(options_)),
      page_channel_(MakeChannel(TargetOf(target), bearer_, wire::ConnectionWindow::kEstimated)),
      stub_(v1::PrefixCache::NewStub(
          MakeChannel(TargetOf(target), bearer_, wire::ConnectionWindow::kNarrow))) {}

void Connection::Start(SessionObserver* observer, Attachment::ReleaseLease release) {
  observer_ = observer;
  release_ = std::move(release);
  if (!address_status_.ok()) return;
  CloseInChildren(options_.address);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {  // no thread to be had: stays detached
    base::MutexLock lock(mutex_);
    tried_ = true;
  }
}

void Connection::Stop() {
  {
    base::MutexLock lock(mutex_);
    stopped_ = true;
    attachment_ = nullptr;
    if (attached_with_ != nullptr) attached_with_->TryCancel();
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  last_ = nullptr;
}

void Connection::PreparePut(const Session& session) {
  {
    base::MutexLock lock(mutex_);
    if (prepared_for_ == session) return;
    prepared_for_ = session;
  }
  EnlargeSendBuffers(options_.address);
}

std::optional<Session> Connection::session() const {
  base::MutexLock lock(mutex_);
  if (!attachment_) return std::nullopt;
  return attachment_->session();
}

std::shared_ptr<Attachment> Connection::attachment() const {
  base::MutexLock lock(mutex_);
  return attachment_;
}

absl::StatusOr<std::shared_ptr<Attachment>> Connection::RequireAttachment() const {
  if (std::shared_ptr<Attachment> attachment = this->attachment()) return attachment;
  if (!address_status_.ok()) return address_status_;
  return absl::UnavailableError(why_not_attached());
}

std::string Connection::why_not_attached() const {
  if (!address_status_.ok()) return std::string(address_status_.message());
  {
    base::MutexLock lock(mutex_);
    if (!tried_) return absl::StrCat("client: attaching to ", options_.address);
    if (!refusal_.empty()) {
      return absl::StrCat("client: not attached to ", options_.address, ": ", refusal_);
    }
  }
  return absl::StrCat("client: ", WhyNobodyAnswers(options_.address));
}

// It is no refusal that nobody listens, or that a session ended.
void Connection::NoteRefusal(const absl::Status& status) {
  const bool mendable =
      absl::IsUnauthenticated(status) || absl::IsNotFound(status) ||
      absl::IsFailedPrecondition(status) || absl::IsDataLoss(status) ||
      absl::IsInvalidArgument(status) || absl::IsPermissionDenied(status) ||
      // gRPC says so of a daemon whose certificate it does not take.
      (options_.address.starts_with(wire::kTlsScheme) && absl::IsUnavailable(status));
  base::MutexLock lock(mutex_);
  refusal_ = mendable ? std::string(status.message()) : "";
}

std::optional<absl::Status> Connection::CallDirectly(wire::DirectVerb verb, const Session& session,
                                                     const google::protobuf::MessageLite& request,
                                                     base::Deadline deadline,
                                                     google::protobuf::MessageLite* reply) const {
  if (verb == wire::DirectVerb::kNone || !TraceOfThread().parent.empty()) return std::nullopt;
  const std::shared_ptr<Attachment> attachment = this->attachment();
  if (attachment == nullptr || attachment->session() != session || attachment->direct() == nullptr)
    return std::nullopt;
  return attachment->direct()->Call(verb, request, deadline, reply);
}

absl::Status Connection::CheckEpoch(const Session& session, uint64_t epoch) const {
  if (epoch == session.epoch) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("client: the daemon at ", options_.address, " restarted"));
}

bool Connection::WaitAttached(base::Deadline deadline) const {
  base::MutexLock lock(mutex_);
  while (!attachment_ && !stopped_ && address_status_.ok()) {
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  }
  return attachment_ != nullptr;
}

void Connection::WaitFirstTry(base::Deadline deadline) const {
  base::MutexLock lock(mutex_);
  while (!attachment_ && !tried_ && !stopped_ && address_status_.ok()) {
    if (!changed_.WaitUntil(mutex_, deadline)) return;
  }
}

void Connection::Run() {
  std::minstd_rand random(std::random_device{}());
  std::chrono::milliseconds pause = kShortestPause;
  do {
    if (AttachOnce()) pause = kShortestPause;
    // Half of the pause is random, so that the workers of a restarted daemon do not come all at
    // once.
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
    // After the first try the call waits for the daemon. When gRPC connects without a pending call,
    // only its backup poller notices, up to 5 s later.
    context.set_wait_for_ready(tried_);
    attached_with_ = &context;
  }
  const absl::Status token = bearer_ == nullptr ? absl::OkStatus() : bearer_->Reload();
  v1::AttachRequest request;
  request.set_worker(options_.name);
  request.set_protocol(kProtocol);
  request.set_library(LibraryName(options_.engine));
  if (options_.use_arena && PathBeside(options_.address, "x")) {
    request.set_wants_arena(true);
    request.set_staging_bytes(options_.staging_bytes);
    request.set_arena_version(block::kArenaVersion);
    request.set_resume(last_key_);
  }
  const std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> events =
      stub_->Attach(&context, request);
  std::optional<Session> session;
  for (v1::SessionEvent event; events->Read(&event);) {
    if (session) {
      observer_->Event(*session, event);
    } else if (event.has_attached()) {
      std::shared_ptr<Attachment> attachment = TakeOver(event);
      session = attachment->session();
      observer_->Attached(*attachment);
      Announce(std::move(attachment));
    }
  }
  {
    base::MutexLock lock(mutex_);
    attached_with_ = nullptr;
  }
  if (session) {
    NoteRefusal(absl::OkStatus());
    Announce(nullptr);
    observer_->Ended(*session);
    events->Finish();
    return true;
  }
  const absl::Status refused = wire::FromGrpc(events->Finish());
  NoteRefusal(absl::IsUnauthenticated(refused) && !token.ok() ? token : refused);
  Announce(nullptr);
  return false;
}

std::shared_ptr<Attachment> Connection::TakeOver(const v1::SessionEvent& event) {
  const v1::Attached& attached = event.attached();
  Attachment::Parts parts;
  parts.session = {.id = attached.session(), .epoch = event.epoch()};
  if (const absl::Status mapped = MapMemory(attached, &parts); !mapped.ok()) {
    parts.arena = nullptr;
    parts.staging = nullptr;
    parts.why_no_arena = std::string(mapped.message());
  }
  if (attached.resumed()) parts.resumed_lease = {attached.resumed_lease()};
  last_key_ = attached.arena() ? attached.key() : "";
  auto attachment = std::make_shared<Attachment>(std::move(parts), release_);
  if (last_ && attached.resumed()) last_->ContinuedBy(attachment);
  last_ = attachment;
  return attachment;
}

absl::Status Connection::MapMemory(const v1::Attached& attached, Attachment::Parts* parts) {
  if (!options_.use_arena) return absl::FailedPreconditionError("use_arena is off");
  const std::optional<std::string> socket = PathBeside(options_.address, attached.fd_socket());
  if (!attached.arena()) {
    return absl::FailedPreconditionError(
        !PathBeside(options_.address, "x") ? "the daemon is not behind a unix socket"
        : attached.why_no_arena().empty()  ? "the daemon shares no memory"
                                           : attached.why_no_arena());
  }
  if (attached.arena_version() != block::kArenaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the daemon's arena has version ", attached.arena_version(),
                     ", this library knows ", block::kArenaVersion));
  }
  if (!socket) return absl::FailedPreconditionError("the daemon named no socket for descriptors");
  CloseInChildren(absl::StrCat("unix:", *socket));
  return ReceiveFiles(*socket, attached.key(), kFilesPatience, [&](SessionFiles files) {
    return MapFiles(attached, std::move(files), parts);
  });
}

absl::Status Connection::MapFiles(const v1::Attached& attached, SessionFiles files,
                                  Attachment::Parts* parts) {
  // The same slot of the same file: the existing mapping's lock covers the new session.
  if (attached.resumed() && last_ && last_->arena() &&
      last_->arena()->AreFiles(files.arena.get(), files.lock.get())) {
    parts->arena = last_->arena();
  } else {
    PREFIXD_ASSIGN_OR_RETURN(parts->arena,
                             ArenaMapping::Map(std::move(files.arena), std::move(files.lock),
                                               {.file_bytes = attached.arena_file_bytes(),
                                                .data_offset = attached.arena_data_offset()}));
  }
  if (attached.direct_calls())
    parts->direct = std::make_shared<DirectChannel>(std::move(files.connection));
  if (files.staging) {  // without it pages travel by Put; hits are still read in place
    absl::StatusOr<std::shared_ptr<StagingMemory>> staging =
        StagingMemory::Map(std::move(files.staging), attached.staging_bytes());
    if (staging.ok()) parts->staging = *std::move(staging);
  }
  return absl::OkStatus();
}

void Connection::Announce(std::shared_ptr<Attachment> attachment) {
  base::MutexLock lock(mutex_);
  if (!stopped_) attachment_ = std::move(attachment);
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
