// The connection to the daemon: a channel for calls, another for pages, and a thread that keeps a
// session attached.
//
// Thread-safe. Call Start() once; Stop() ends the thread.
#pragma once
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

#include "attachment.h"
#include "base/mutex.h"
#include "base/status.h"
#include "fd_exchange.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"
#include "raw_stream.h"
#include "trace.h"
#include "wire/bearer.h"
#include "wire/grpc_status.h"
#include "wire/target.h"

namespace prefixd::client {

// Converts a deadline for ClientContext::set_deadline.
std::chrono::system_clock::time_point WallClock(base::Deadline deadline);

// Is told of the session, on the attaching thread.
class SessionObserver {
 public:
  virtual ~SessionObserver() = default;
  // Called before attachment() and session() give the session to anybody else.
  virtual void Attached(const Attachment& attachment) = 0;
  virtual void Event(const Session& session, const v1::SessionEvent& event) = 0;
  // Called after they have stopped giving it.
  virtual void Ended(const Session& session) = 0;
};

class Connection {
 public:
  using Stub = v1::PrefixCache::Stub;
  template <typename Request, typename Reply>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Reply*);

  struct Options {
    std::string address;
    std::string token_file{};  // ClientOptions::token_file
    std::string name;
    std::string engine{};
    bool use_arena = true;
    uint64_t staging_bytes = 0;
  };
  explicit Connection(Options options);
  ~Connection() { Stop(); }

  // Starts the thread. The observer must outlive it. `release` is called for as long as an
  // attachment lives.
  void Start(SessionObserver* observer, Attachment::ReleaseLease release);
  void Stop() PREFIXD_EXCLUDES(mutex_);

  std::optional<Session> session() const PREFIXD_EXCLUDES(mutex_);
  // Null if not attached.
  std::shared_ptr<Attachment> attachment() const PREFIXD_EXCLUDES(mutex_);
  // Tells four cases apart: attaching, nobody there, a socket that this process may not open, a
  // daemon that refuses the session.
  std::string why_not_attached() const PREFIXD_EXCLUDES(mutex_);
  // Returns the attachment. Unavailable, with why_not_attached(), if there is none;
  // InvalidArgument if the address cannot be one.
  absl::StatusOr<std::shared_ptr<Attachment>> RequireAttachment() const;
  // Waits until attached. Returns false at the deadline.
  bool WaitAttached(base::Deadline deadline) const PREFIXD_EXCLUDES(mutex_);
  // Waits until attached, until the first try has failed, or until the deadline.
  void WaitFirstTry(base::Deadline deadline) const PREFIXD_EXCLUDES(mutex_);

  // Makes a call of `session`, as a direct one if there is a verb for it and a channel. Unavailable
  // if the reply comes from another life of the daemon.
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(Method<Request, Reply> method, const Session& session,
                             const Request& request, base::Deadline deadline,
                             wire::DirectVerb verb = wire::DirectVerb::kNone) {
    Reply reply;
    std::optional<absl::Status> status = CallDirectly(verb, session, request, deadline, &reply);
    if (!status.has_value()) {
      grpc::ClientContext context;
      context.set_deadline(WallClock(deadline));
      CarryTrace(&context);
      status = wire::FromGrpc((*stub_.*method)(&context, request, &reply));
    }
    PREFIXD_RETURN_IF_ERROR(*status);
    PREFIXD_RETURN_IF_ERROR(CheckEpoch(session, reply.epoch()));
    return reply;
  }
  absl::Status CheckEpoch(const Session& session, uint64_t epoch) const;
  Stub& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& page_channel() const { return page_channel_; }
  // Enlarges the send buffers of the connections to the daemon, once a session. Call it when a Put
  // has begun: its connection exists from then on.
  void PreparePut(const Session& session) PREFIXD_EXCLUDES(mutex_);

 private:
  Connection(Options options, const absl::StatusOr<wire::Target>& target);
  // As DirectChannel::Call. nullopt too if the thread has a trace, which direct calls do not carry.
  std::optional<absl::Status> CallDirectly(wire::DirectVerb verb, const Session& session,
                                           const google::protobuf::MessageLite& request,
                                           base::Deadline deadline,
                                           google::protobuf::MessageLite* reply) const;
  void Run();
  // Attaches and stays until the stream ends. Returns true if it was attached.
  bool AttachOnce() PREFIXD_EXCLUDES(mutex_);
  std::shared_ptr<Attachment> TakeOver(const v1::SessionEvent& event);
  // Fills arena and staging. The error says why there is no arena.
  absl::Status MapMemory(const v1::Attached& attached, Attachment::Parts* parts);
  absl::Status MapFiles(const v1::Attached& attached, SessionFiles files, Attachment::Parts* parts);
  void Announce(std::shared_ptr<Attachment> attachment) PREFIXD_EXCLUDES(mutex_);
  // Waits for `pause`. Returns false when stopped.
  bool Pause(std::chrono::milliseconds pause) PREFIXD_EXCLUDES(mutex_);

  // Remembers why the last try failed, if people can do something about it.
  void NoteRefusal(const absl::Status& status) PREFIXD_EXCLUDES(mutex_);

  const Options options_;
  const absl::Status address_status_;           // of its TargetOf()
  const std::shared_ptr<wire::Bearer> bearer_;  // null if no file is named or none is needed
  const std::shared_ptr<grpc::Channel> page_channel_;
  const std::unique_ptr<Stub> stub_;     // on a channel of its own
  SessionObserver* observer_ = nullptr;  // this and `release_`: constant after Start()
  Attachment::ReleaseLease release_;
  std::thread thread_;
  // The last session, for the attaching thread alone. Its memory is kept until another session goes
  // on with it or takes its place.
  std::shared_ptr<Attachment> last_;
  std::string last_key_;  // of the last session, if it maps the arena; else empty

  mutable base::Mutex mutex_;  // guards what follows
  mutable base::CondVar changed_;
  std::optional<Session> prepared_for_ PREFIXD_GUARDED_BY(mutex_);
  std::shared_ptr<Attachment> attachment_ PREFIXD_GUARDED_BY(mutex_);
  std::string refusal_ PREFIXD_GUARDED_BY(mutex_);  // of the last try; empty if there was none
  bool tried_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stopped_ PREFIXD_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* attached_with_ PREFIXD_GUARDED_BY(mutex_) = nullptr;  // of the open stream
};

}  // namespace prefixd::client
