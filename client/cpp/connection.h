// The way to the daemon: one channel, and a thread that keeps a session attached to it.
//
// Thread-safe. Start() once; the thread ends with Stop().
#pragma once
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/mutex.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"

namespace prefixd::client {

// Ids given under one session are void under another.
struct Session {
  uint64_t id = 0;
  uint64_t epoch = 0;  // of the daemon's life
  bool operator==(const Session&) const = default;
};

absl::Status FromGrpc(const grpc::Status& status);
// For ClientContext::set_deadline.
std::chrono::system_clock::time_point WallClock(base::Deadline deadline);

class Connection {
 public:
  using Stub = v1::PrefixCache::Stub;
  template <typename Request, typename Reply>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Reply*);

  Connection(std::string address, std::string name);
  ~Connection() { Stop(); }

  // `on_attach` runs on the attaching thread, before session() tells the session to anybody else.
  void Start(std::function<void(const Session&)> on_attach);
  void Stop() PREFIXD_EXCLUDES(mutex_);

  std::optional<Session> session() const PREFIXD_EXCLUDES(mutex_);
  // Unavailable("... no daemon at ADDRESS") when not attached.
  absl::StatusOr<Session> RequireSession() const;
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
    if (reply.epoch() != session.epoch) {
      return absl::UnavailableError(absl::StrCat("client: the daemon at ", address_, " restarted"));
    }
    return reply;
  }
  Stub& stub() { return *stub_; }

 private:
  void Run();
  // Attaches and stays until the stream ends. True when it was attached.
  bool AttachOnce() PREFIXD_EXCLUDES(mutex_);
  void Announce(std::optional<Session> session) PREFIXD_EXCLUDES(mutex_);
  // False when stopped.
  bool Pause(std::chrono::milliseconds pause) PREFIXD_EXCLUDES(mutex_);

  const std::string address_;
  const std::string name_;
  const std::unique_ptr<Stub> stub_;
  std::function<void(const Session&)> on_attach_;  // constant after Start()
  std::thread thread_;

  mutable base::Mutex mutex_;  // guards what follows
  mutable base::CondVar changed_;
  std::optional<Session> session_ PREFIXD_GUARDED_BY(mutex_);
  bool tried_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stopped_ PREFIXD_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* attached_with_ PREFIXD_GUARDED_BY(mutex_) = nullptr;  // of the open stream
};

}  // namespace prefixd::client
