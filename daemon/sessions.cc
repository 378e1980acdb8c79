#include "daemon/sessions.h"

#include <atomic>
#include <deque>

#include "absl/strings/escaping.h"
#include "spdlog/spdlog.h"

#include "daemon/call.h"
#include "wire/limits.h"
#include "wire/request.h"

namespace prefixd::daemon {
namespace {

// A stream that is refused before it has a session.
class Refusal final : public Sessions::Reactor {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

class Sessions::Stream final : public Sessions::Reactor {
 public:
  Stream(Sessions* sessions, const v1::AttachRequest& request)
      : sessions_(sessions),
        worker_(absl::CHexEscape(request.worker())),
        session_(sessions->cache_->BeginSession(request.worker())) {
    spdlog::info("attach session={:x} worker=\"{}\" library=\"{}\"", session_.value, worker_,
                 absl::CHexEscape(request.library()));
  }

  void Greet() {
    v1::SessionEvent event;
    event.mutable_attached()->set_session(session_.value);
    event.mutable_attached()->set_protocol(wire::kProtocol);
    event.mutable_attached()->set_version(sessions_->version_);
    Send(std::move(event));
  }

  void Send(v1::SessionEvent event) PREFIXD_EXCLUDES(mutex_) {
    event.set_epoch(sessions_->cache_->epoch());
    base::MutexLock lock(mutex_);
    queue_.push_back(std::move(event));
    if (queue_.size() == 1 && !finished_) StartWrite(&queue_.front());
  }

  // The session goes with OnDone.
  void Close(const grpc::Status& status) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    if (!finished_) Finish(status);
    finished_ = true;
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return OnCancel();
    base::MutexLock lock(mutex_);
    queue_.pop_front();
    if (!queue_.empty() && !finished_) StartWrite(&queue_.front());
  }

  void OnCancel() override {
    EndSession();
    Close(grpc::Status(grpc::StatusCode::CANCELLED, "the worker is gone"));
  }

  void OnDone() override {
    EndSession();
    sessions_->Forget(this);
    delete this;
  }

 private:
  void EndSession() {
    if (ended_.exchange(true)) return;
    sessions_->cache_->EndSession(session_);
    spdlog::info("detach session={:x} worker=\"{}\"", session_.value, worker_);
  }

  Sessions* const sessions_;
  const std::string worker_;
  const block::SessionId session_;
  std::atomic<bool> ended_{false};
  base::Mutex mutex_;
  std::deque<v1::SessionEvent> queue_ PREFIXD_GUARDED_BY(mutex_);  // the first one is being written
  bool finished_ PREFIXD_GUARDED_BY(mutex_) = false;
};

Sessions::Reactor* Sessions::Attach(const v1::AttachRequest& request) {
  Call call(cache_, "rpc.attach");
  if (absl::Status status = wire::Check(request); !status.ok())
    return new Refusal(call.End(status));
  auto* stream = new Stream(this, request);
  base::MutexLock lock(mutex_);
  if (draining_) {
    stream->Close(call.End(absl::UnavailableError("attach: the daemon is stopping")));
    return stream;
  }
  streams_.insert(stream);
  stream->Greet();
  call.End(absl::OkStatus());
  return stream;
}

void Sessions::Drain(uint32_t deadline_ms) {
  v1::SessionEvent event;
  event.mutable_draining()->set_deadline_ms(deadline_ms);
  base::MutexLock lock(mutex_);
  draining_ = true;
  for (Stream* stream : streams_) stream->Send(event);
}

void Sessions::EndAll() {
  base::MutexLock lock(mutex_);
  draining_ = true;
  for (Stream* stream : streams_)
    stream->Close(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the daemon stops"));
}

bool Sessions::draining() const {
  base::MutexLock lock(mutex_);
  return draining_;
}

void Sessions::Forget(Stream* stream) {
  base::MutexLock lock(mutex_);
  streams_.erase(stream);
}

}  // namespace prefixd::daemon
