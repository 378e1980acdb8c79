#include "daemon/direct_calls.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

#include "daemon/call.h"
#include "daemon/long_requests.h"
#include "os/messages.h"
#include "wire/direct.h"
#include "wire/send_buffer.h"
#include "wire/unfolded.h"

namespace prefixd::daemon {
namespace {

using wire::DirectVerb;

// How long a worker may leave an answer unread that does not fit into its socket's buffer.
constexpr std::chrono::seconds kSendPatience(1);

// Returns false, with errno, if the worker does not read or has gone.
bool SendPiece(int socket, std::string_view piece) {
  const auto end = std::chrono::steady_clock::now() + kSendPatience;
  while (!os::SendMessage(socket, piece, {})) {
    if (errno != EAGAIN || std::chrono::steady_clock::now() >= end) return false;
    pollfd polled{.fd = socket, .events = POLLOUT, .revents = 0};
    ::poll(&polled, 1, static_cast<int>(std::chrono::milliseconds(kSendPatience).count()));
  }
  return true;
}

}  // namespace

// One worker's connection. Run is for one thread; HangUp for any.
class DirectCalls::Connection {
 public:
  Connection(DirectCalls* calls, base::Descriptor socket, block::SessionId session)
      : calls_(calls), socket_(std::move(socket)), session_(session) {
    wire::EnlargeSendBuffer(socket_.get());
  }

  // Serves calls until the worker hangs up.
  void Run() {
    while (Receive()) {
      std::string_view message = reader_.bytes();
      wire::DirectRequest head;
      if (reader_.sent_bytes() > message.size() || !wire::TakeHead(&message, &head)) return;
      if (handed_out_.has_value() && head.heard != answered_) handed_out_->TakeBack();
      handed_out_.emplace(calls_->cache_, session_);
      answered_ = head.call;
      if (!Answer(head, message)) return handed_out_->TakeBack();
      reader_.Next();
    }
  }
  void HangUp() { ::shutdown(socket_.get(), SHUT_RD); }

 private:
  // Waits for a message. Returns false once the worker, or HangUp, has hung up.
  bool Receive() {
    for (;;) {
      const os::MessageReader::Got got = reader_.Read(socket_.get());
      if (got != os::MessageReader::Got::kMore) return got == os::MessageReader::Got::kMessage;
      pollfd polled{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      ::poll(&polled, 1, -1);
    }
  }

  // Serves a call and sends the answer. Returns false if that could not be sent.
  bool Answer(const wire::DirectRequest& head, std::string_view message) {
    std::string answer(sizeof(wire::DirectAnswer), '\0');
    const std::optional<absl::Status> status = Handle(head, message, &answer);
    if (status.has_value() && !status->ok()) answer.append(std::string(status->message()));
    const wire::DirectAnswer sent{
        .call = head.call,
        .code = status.has_value() ? static_cast<uint32_t>(status->code()) : wire::kCallByGrpc,
        .bytes = static_cast<uint32_t>(answer.size() - sizeof(wire::DirectAnswer))};
    answer.replace(0, sizeof(sent), wire::BytesOf(sent));
    for (std::string_view rest = answer; !rest.empty();) {
      const std::string_view piece = rest.substr(0, wire::kMaxDirectMessageBytes);
      if (!SendPiece(socket_.get(), piece)) return false;
      rest.remove_prefix(piece.size());
    }
    return true;
  }

  // Appends the reply to `answer`. nullopt: nothing was done, this goes by gRPC.
  std::optional<absl::Status> Handle(const wire::DirectRequest& head, std::string_view message,
                                     std::string* answer) {
    const Caller caller{&*handed_out_, nullptr, nullptr};
    const auto wait =
        std::min<std::chrono::milliseconds>(std::chrono::milliseconds(head.patience_ms), kMaxWait);
    const cache::Patience patience(std::chrono::steady_clock::now() + wait, &calls_->stopping_);
    PrefixCacheService* const service = calls_->service_;
    switch (head.verb) {
      case DirectVerb::kMatch:
        return Do<v1::AcquireRequest, v1::AcquireReply>(
            "rpc.match", message, answer,
            [&](auto* request, auto* reply) { return service->DoMatch(request, reply); });
      case DirectVerb::kAcquire:
        return Do<v1::AcquireRequest, v1::AcquireReply>(
            "rpc.acquire", message, answer, [&](auto* request, auto* reply) {
              return service->DoAcquire(request, patience, caller, reply);
            });
      case DirectVerb::kRelease:
        return Do<v1::ReleaseRequest, v1::Ack>(
            "rpc.release", message, answer,
            [&](auto* request, auto* reply) { return service->DoRelease(*request, reply); });
      case DirectVerb::kReserve:
        return Do<v1::ReserveRequest, v1::ReserveReply>(
            "rpc.reserve", message, answer, [&](auto* request, auto* reply) {
              return service->DoReserve(*request, caller.hand_out, reply);
            });
      case DirectVerb::kCommit:
        return Do<v1::CommitRequest, v1::CommitReply>(
            "rpc.commit", message, answer, [&](auto* request, auto* reply) {
              const auto running = calls_->dispatch_->Running();
              return service->DoCommit(*request, patience, caller, reply);
            });
      case DirectVerb::kAbandon:
        return Do<v1::AbandonRequest, v1::Ack>(
            "rpc.abandon", message, answer,
            [&](auto* request, auto* reply) { return service->DoAbandon(*request, reply); });
      case DirectVerb::kNone:
        break;
    }
    return std::nullopt;  // a verb of a later version
  }

  template <typename Request, typename Reply, typename Work>
  std::optional<absl::Status> Do(const char* name, std::string_view message, std::string* answer,
                                 const Work& work) {
    google::protobuf::io::ArrayInputStream bytes(message.data(), static_cast<int>(message.size()));
    if (!wire::UnfoldedBytes(*Request::descriptor(), &bytes, LongRequests::kShortUnfoldedBytes)
             .ok()) {
      return std::nullopt;  // gRPC says what is wrong, or has the memory
    }
    Call counted(calls_->cache_, name);
    calls_->cache_->Count("calls.direct");
    Request request;
    Reply reply;
    absl::Status status = absl::OkStatus();
    if (!request.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
      status = absl::InvalidArgumentError(
          absl::StrCat("the request is no ", Request::descriptor()->name()));
    } else if (request.session() != session_.value) {
      status = absl::InvalidArgumentError("a direct call names a session that is not its own");
    } else {
      status = work(&request, &reply);
    }
    counted.End(status);
    if (status.ok()) {
      reply.AppendToString(answer);
    } else {
      handed_out_->TakeBack();
    }
    return status;
  }

  DirectCalls* const calls_;
  const base::Descriptor socket_;
  const block::SessionId session_;
  os::MessageReader reader_{wire::kMaxDirectMessageBytes, /*most_files=*/0};
  std::optional<HandOut> handed_out_;  // by the last answer
  uint64_t answered_ = 0;              // its call
};

DirectCalls::DirectCalls(cache::Cache* cache, Sessions* sessions, Dispatch* dispatch,
                         PrefixCacheService* service)
    : cache_(cache), sessions_(sessions), dispatch_(dispatch), service_(service) {}

DirectCalls::~DirectCalls() {
  {
    const base::MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& [session, connection] : connections_) connection->HangUp();
  }
  threads_.Stop();
}

void DirectCalls::Serve(base::Descriptor connection, block::SessionId session) {
  const auto served = std::make_shared<Connection>(this, std::move(connection), session);
  {
    const base::MutexLock lock(mutex_);
    if (stopping_) return;
    connections_[session] = served;
  }
  if (!sessions_->Has(session)) served->HangUp();  // it ended since
  if (!threads_.TryRun([this, served, session] {
        served->Run();
        Forget(session);
      })) {
    Forget(session);
  }
}

void DirectCalls::End(block::SessionId session) {
  const base::MutexLock lock(mutex_);
  const auto found = connections_.find(session);
  if (found != connections_.end()) found->second->HangUp();
}

void DirectCalls::Forget(block::SessionId session) {
  const base::MutexLock lock(mutex_);
  connections_.erase(session);
}

}  // namespace prefixd::daemon
