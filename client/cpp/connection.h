// The way to the daemon: a channel for calls, another for pages, and a thread that keeps a session
// attached to it.
//
// Thread-safe. Start() once; the thread ends with Stop().
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
#include "wire/bearer.h"

namespace prefixd::client {

absl::Status FromGrpc(const grpc::Status& status);
// For ClientContext::set_deadline.
std::chrono::system_clock::time_point WallClock(base::Deadline deadline);

// Hears of the session, on the attaching thread.
class SessionObserver {
 public:
  virtual ~SessionObserver() = default;
  // Before attachment() tells the session to anybody else.
  virtual void Attached(const Session& session) = 0;
  virtual void Event(const Session& session, const v1::SessionEvent& event) = 0;
  // After session() has stopped telling it.
  virtual void Ended(const Session& session) = 0;
};

class Connection {
 public:
  using Stub = v1::PrefixCache::Stub;
  template <typename Request, typename Reply>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Reply*);

  struct Options {
    std::string address;
    std::string token_file{};  // of ClientOptions
    std::string name;
    bool use_arena = true;
    uint64_t staging_bytes = 0;
  };
  explicit Connection(Options options);
  ~Connection() { Stop(); }

  // The observer outlives the thread; `release` is called for as long as an attachment lives.
  void Start(SessionObserver* observer, Attachment::ReleaseLease release);
  void Stop() PREFIXD_EXCLUDES(mutex_);

  std::optional<Session> session() const PREFIXD_EXCLUDES(mutex_);
  // Null when not attached.
  std::shared_ptr<Attachment> attachment() const PREFIXD_EXCLUDES(mutex_);
  // "client: no daemon at ADDRESS", or what the daemon refuses the session for.
  std::string why_not_attached() const PREFIXD_EXCLUDES(mutex_);
  // Unavailable, with that, when not attached.
  absl::StatusOr<std::shared_ptr<Attachment>> RequireAttachment() const;
  // False at the deadline.
  bool WaitAttached(base::Deadline deadline) const PREFIXD_EXCLUDES(mutex_);
  // Until attached, or until the first try has failed.
  void WaitFirstTry(base::Deadline deadline) const PREFIXD_EXCLUDES(mutex_);

  // One call of `session`. Unavailable when the answer comes from another life of the daemon.
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(Method<Request, Reply> method, const Session& session,
                             const Request& request, base::Deadline deadline) {
    grpc::ClientContext context;
    context.set_deadline(WallClock(deadline));
    Reply reply;
    absl::Status status = FromGrpc((*stub_.*method)(&context, request, &reply));
    if (!status.ok()) return status;
    PREFIXD_RETURN_IF_ERROR(CheckEpoch(session, reply.epoch()));
    return reply;
  }
  absl::Status CheckEpoch(const Session& session, uint64_t epoch) const;
  Stub& stub() { return *stub_; }
  const PageChannel& page_channel() const { return page_channel_; }

 private:
  void Run();
  // Attaches and stays until the stream ends. True when it was attached.
  bool AttachOnce() PREFIXD_EXCLUDES(mutex_);
  std::shared_ptr<Attachment> TakeOver(const v1::SessionEvent& event);
  // Fills arena and staging, or why_no_arena. Returns why, when there is none.
  absl::Status MapMemory(const v1::Attached& attached, Attachment::Parts* parts);
  absl::Status MapFiles(const v1::Attached& attached, SessionFiles files, Attachment::Parts* parts);
  void Announce(std::shared_ptr<Attachment> attachment) PREFIXD_EXCLUDES(mutex_);
  // False when stopped.
  bool Pause(std::chrono::milliseconds pause) PREFIXD_EXCLUDES(mutex_);

  // Remembers why the last try failed, where people can do something about it.
  void NoteRefusal(const absl::Status& status) PREFIXD_EXCLUDES(mutex_);

  const Options options_;
  const std::shared_ptr<wire::Bearer> bearer_;  // null: none is named, or none is needed
  const PageChannel page_channel_;
  const std::unique_ptr<Stub> stub_;     // on another channel
  SessionObserver* observer_ = nullptr;  // this and the next: constant after Start()
  Attachment::ReleaseLease release_;
  std::thread thread_;
  // Of the attaching thread: the last session, whose memory is kept until another one goes on with
  // it or takes its place.
  std::shared_ptr<Attachment> last_;
  std::string last_key_;  // of a session that maps the arena

  mutable base::Mutex mutex_;  // guards what follows
  mutable base::CondVar changed_;
  std::shared_ptr<Attachment> attachment_ PREFIXD_GUARDED_BY(mutex_);
  std::string refusal_ PREFIXD_GUARDED_BY(mutex_);  // of the last try; empty: none
  bool tried_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stopped_ PREFIXD_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* attached_with_ PREFIXD_GUARDED_BY(mutex_) = nullptr;  // of the open stream
};

}  // namespace prefixd::client
