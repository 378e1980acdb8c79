#include "daemon/sessions.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "base/bytes.h"
#include "daemon/call.h"
#include "daemon/message.h"
#include "daemon/unix_listener.h"
#include "wire/answer.h"
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

// The cache may ask when the stream is gone.
absl::StatusOr<std::shared_ptr<void>> ChargeLease(const std::shared_ptr<Gate::Seat>& seat,
                                                  uint64_t bytes) {
  if (seat == nullptr) return absl::NotFoundError("lease: the session ended");
  return seat->ChargeLease(bytes);
}

v1::SessionEvent ToEvent(const cache::SessionEvent& event) {
  v1::SessionEvent proto;
  if (event.kind == cache::SessionEvent::Kind::kLeaseReady) {
    wire::ToProto(
        wire::LeaseReady{.lease = event.lease, .group = event.group, .pages = event.pages},
        proto.mutable_ready());
  } else {
    wire::ToProto(wire::LeaseFailed{.lease = event.lease,
                                    .group = event.group,
                                    .usable_tokens = event.usable_tokens,
                                    .reason = event.reason},
                  proto.mutable_failed());
  }
  return proto;
}

}  // namespace

// The events that one session is still to be told. The cache keeps the outbox too, and may call it
// when the stream is gone.
class Sessions::Outbox {
 public:
  Outbox(Sessions* sessions, Reactor* stream, std::string worker)
      : sessions_(sessions), stream_(stream), worker_(std::move(worker)) {}

  // Writes the first event. Called once; events that were sent before wait behind it.
  void Greet(block::SessionId session, v1::SessionEvent event) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    session_ = session;
    queue_.push_front(MessageOf(&event));
    if (!closed_) stream_->StartWrite(&queue_.front());
  }
  // Queues an event. A reader that leaves too much unread loses its stream and its session.
  void Send(v1::SessionEvent event) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    if (closed_) return;
    grpc::ByteBuffer message = MessageOf(&event);
    const uint64_t bytes = message.Length();
    if (unread_bytes_ + bytes > wire::kMaxUnreadEventBytes && !queue_.empty()) {
      sessions_->EndLater(session_, worker_);
      return CloseLocked(grpc::Status(
          grpc::StatusCode::RESOURCE_EXHAUSTED,
          absl::StrCat("attach: ", unread_bytes_, " bytes of events are unread, at most ",
                       wire::kMaxUnreadEventBytes)));
    }
    unread_bytes_ += bytes;
    queue_.push_back(std::move(message));
    if (session_ && queue_.size() == 1) stream_->StartWrite(&queue_.front());
  }
  void Written() PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    unread_bytes_ -= std::min<uint64_t>(unread_bytes_, queue_.front().Length());
    queue_.pop_front();
    if (!queue_.empty() && !closed_) stream_->StartWrite(&queue_.front());
  }
  // Finishes the stream. Returns true to the first caller, who must end the session.
  bool Close(const grpc::Status& status) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    if (closed_) return false;
    CloseLocked(status);
    return true;
  }

 private:
  grpc::ByteBuffer MessageOf(v1::SessionEvent* event) const PREFIXD_REQUIRES(mutex_) {
    event->set_epoch(sessions_->cache_->epoch());
    grpc::ByteBuffer message;
    Write(*event, &message).IgnoreError();  // fails only without memory
    return message;
  }
  void CloseLocked(const grpc::Status& status) PREFIXD_REQUIRES(mutex_) {
    closed_ = true;
    if (queue_.size() > 1) queue_.erase(queue_.begin() + 1, queue_.end());
    stream_->Finish(status);
  }

  // The outbox outlives both: the cache's calls touch them only before it is closed.
  Sessions* const sessions_;
  Reactor* const stream_;
  const std::string worker_;
  base::Mutex mutex_;
  block::SessionId session_ PREFIXD_GUARDED_BY(mutex_);  // none before Greet
  // From Greet on, gRPC is writing the first one.
  std::deque<grpc::ByteBuffer> queue_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t unread_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;
  bool closed_ PREFIXD_GUARDED_BY(mutex_) = false;
};

// Has no session until Begin, which is called once.
class Sessions::Stream final : public Sessions::Reactor {
 public:
  // Among all sessions, and among those of its principal (null: not counted).
  using Seats = std::pair<Shares::Share, std::shared_ptr<Gate::Seat>>;
  // `why_no_arena`: empty for a worker that may have it.
  Stream(Sessions* sessions, const v1::AttachRequest& request, std::string why_no_arena,
         Seats seats, const std::optional<base::Peer>& peer)
      : sessions_(sessions),
        seats_(std::move(seats)),
        worker_(absl::CHexEscape(request.worker())),
        wanted_arena_(request.wants_arena()),
        why_no_arena_(std::move(why_no_arena)),
        library_(absl::CHexEscape(request.library())),
        outbox_(std::make_shared<Outbox>(sessions, this, worker_)),
        options_(OptionsOf(request, peer)) {}

  // Returns true if the worker resumes an earlier session. Begin then waits for the index, which
  // says what that session held.
  bool resumes() const { return options_.resume.has_value(); }
  // Returns false if the worker has gone meanwhile: the caller then ends the stream.
  bool Begin() PREFIXD_EXCLUDES(mutex_) {
    begun_ = sessions_->cache_->BeginSession(options_);
    if (seats_.second != nullptr) seats_.second->Bind(begun_.session);
    spdlog::info("attach session={:016x} worker=\"{}\" library=\"{}\" arena={} staging={}{}",
                 sessions_->cache_->NameOf(begun_.session).value, worker_, library_,
                 begun_.slot == block::kNoSlot ? "no" : absl::StrCat("slot ", begun_.slot),
                 begun_.staging_bytes, begun_.resumed ? " resumed" : "");
    base::MutexLock lock(mutex_);
    has_begun_ = true;
    return !gone_;
  }
  block::SessionId session() const { return begun_.session; }
  const std::string& worker() const { return worker_; }

  void Greet() {
    v1::SessionEvent event;
    v1::Attached* attached = event.mutable_attached();
    attached->set_session(begun_.session.value);
    attached->set_protocol(wire::kProtocol);
    attached->set_version(sessions_->version_);
    if (wanted_arena_) DescribeArena(attached);
    outbox_->Greet(begun_.session, std::move(event));
  }
  void Send(v1::SessionEvent event) { outbox_->Send(std::move(event)); }
  // Ends the stream and has the session ended on another thread; OnDone follows.
  void End(const grpc::Status& status) {
    if (outbox_->Close(status)) sessions_->EndLater(begun_.session, worker_);
  }
  // If this returns true, the caller must end the session.
  bool Close(const grpc::Status& status) { return outbox_->Close(status); }

  void OnWriteDone(bool ok) override {
    if (ok) return outbox_->Written();
    OnCancel();
  }
  void OnCancel() override {
    {
      base::MutexLock lock(mutex_);
      gone_ = true;
      if (!has_begun_) return;  // Sessions::Begin ends it
    }
    End(Gone());
  }
  static grpc::Status Gone() { return {grpc::StatusCode::CANCELLED, "the worker is gone"}; }
  void OnDone() override {
    sessions_->Forget(begun_.session);
    delete this;
  }

 private:
  cache::SessionOptions OptionsOf(const v1::AttachRequest& request,
                                  const std::optional<base::Peer>& peer) const {
    cache::SessionOptions options;
    options.peer = peer;
    options.worker = request.worker();
    options.library = request.library();
    options.wants_arena = wanted_arena_ && why_no_arena_.empty();
    options.staging_bytes = options.wants_arena ? request.staging_bytes() : 0;
    if (options.wants_arena && !request.resume().empty()) {
      const auto bytes = base::AsBytes(request.resume());  // wire::Check has checked its length
      std::copy(bytes.begin(), bytes.end(), options.resume.emplace().begin());
    }
    if (seats_.second != nullptr) {
      options.charge_lease = [seat = std::weak_ptr<Gate::Seat>(seats_.second)](uint64_t bytes) {
        return ChargeLease(seat.lock(), bytes);
      };
    }
    options.on_event = [outbox = outbox_,
                        loads = sessions_->loads_](const cache::SessionEvent& event) {
      if (loads != nullptr) loads->Note(event);
      outbox->Send(ToEvent(event));
    };
    return options;
  }

  void DescribeArena(v1::Attached* attached) const {
    attached->set_arena_version(block::kArenaVersion);
    if (begun_.slot == block::kNoSlot) {
      const std::string full = absl::StrCat("all ", block::kArenaSlots,
                                            " places of workers that map the arena are taken");
      attached->set_why_no_arena(why_no_arena_.empty() ? full : why_no_arena_);
      return;
    }
    const cache::ArenaPlace arena = sessions_->cache_->arena();
    attached->set_key(begun_.key.data(), begun_.key.size());
    attached->set_arena(true);
    attached->set_slot(begun_.slot);
    attached->set_arena_file_bytes(arena.file_bytes);
    attached->set_arena_data_offset(arena.data_offset);
    attached->set_fd_socket(sessions_->fd_socket_);
    attached->set_direct_calls(sessions_->direct_calls_);
    attached->set_staging_bytes(begun_.staging_bytes);
    attached->set_resumed(begun_.resumed);
    attached->set_resumed_lease(begun_.resumed_lease.value);
  }

  Sessions* const sessions_;
  const Seats seats_;
  const std::string worker_;
  const bool wanted_arena_;
  const std::string why_no_arena_;
  const std::string library_;
  const std::shared_ptr<Outbox> outbox_;
  const cache::SessionOptions options_;
  cache::BegunSession begun_;  // set by Begin, then constant
  base::Mutex mutex_;
  bool has_begun_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool gone_ PREFIXD_GUARDED_BY(mutex_) = false;
};

std::string Sessions::WhyNoArena(const v1::AttachRequest& request, bool on_this_host,
                                 bool has_tenants) const {
  if (!on_this_host) return "only a worker on the unix socket may map the arena";
  if (has_tenants) return "the access file names several tenants, and the arena shows all pages";
  if (request.arena_version() != block::kArenaVersion) {
    return absl::StrCat("the worker knows arena version ", request.arena_version(),
                        ", this daemon's is ", block::kArenaVersion);
  }
  if (!cache_->arena().shared || fd_socket_.empty())
    return "this daemon's memory is private: its log says why";
  return "";
}

absl::StatusOr<Shares::Share> Sessions::TakeSeat(const std::string& owner) {
  Shares::Share seat = seats_.TakeAs(owner);
  if (seat != nullptr) return seat;
  cache_->Count("refused.sessions");
  return absl::ResourceExhaustedError(
      absl::StrCat("attach: ", seats_.taken(), " sessions are attached, at most ", seats_.most(),
                   " (--max-sessions), and of ", owner, " never more than it leaves to others"));
}

Sessions::Reactor* Sessions::Attach(const grpc::ByteBuffer& message, const std::string& peer,
                                    std::shared_ptr<Gate::Seat> own_seat, bool has_tenants) {
  Call call(cache_, "rpc.attach");
  v1::AttachRequest request;
  absl::Status status = ReadSmall(message, &request);
  if (status.ok()) status = wire::Check(request);
  if (!status.ok()) return new Refusal(call.End(status));
  if (draining()) {
    return new Refusal(call.End(absl::UnavailableError("attach: the daemon is stopping")));
  }
  const std::optional<base::Peer> process = UnixPeer(peer);
  absl::StatusOr<Shares::Share> seat = TakeSeat(CallerOf(peer));
  if (!seat.ok()) return new Refusal(call.End(seat.status()));
  auto* stream = new Stream(this, request, WhyNoArena(request, process.has_value(), has_tenants),
                            {*std::move(seat), std::move(own_seat)}, process);
  if (stream->resumes()) {
    beginnings_.Post([this, stream] { Begin(stream); });
  } else {
    Begin(stream);
  }
  call.End(absl::OkStatus());
  return stream;
}

void Sessions::Begin(Stream* stream) {
  const bool there = stream->Begin();
  base::MutexLock lock(mutex_);
  streams_.emplace(stream->session(), stream);
  if (!there) return stream->End(Stream::Gone());
  if (draining_) {  // since Attach looked
    return stream->End(ToGrpc(absl::UnavailableError("attach: the daemon is stopping")));
  }
  stream->Greet();
}

bool Sessions::End(block::SessionName name) {
  block::SessionId session;
  std::string worker;
  {
    base::MutexLock lock(mutex_);
    const auto found = std::ranges::find_if(
        streams_, [&](const auto& entry) { return cache_->NameOf(entry.first) == name; });
    if (found == streams_.end()) return false;
    session = found->first;
    worker = found->second->worker();
    if (!found->second->Close({grpc::StatusCode::ABORTED, "the session was ended by hand"}))
      return false;
  }
  cache_->EndSession(session);
  spdlog::info("detach session={:016x} worker=\"{}\" by hand", name.value, worker);
  return true;
}

void Sessions::EndBecause(block::SessionId session, const grpc::Status& status) {
  base::MutexLock lock(mutex_);
  const auto found = streams_.find(session);
  if (found != streams_.end()) found->second->End(status);
}

void Sessions::Drain(uint32_t deadline_ms) {
  v1::SessionEvent event;
  event.mutable_draining()->set_deadline_ms(deadline_ms);
  base::MutexLock lock(mutex_);
  draining_ = true;
  for (const auto& [session, stream] : streams_) stream->Send(event);
}

void Sessions::EndAll() {
  base::MutexLock lock(mutex_);
  draining_ = true;
  for (const auto& [session, stream] : streams_)
    stream->End({grpc::StatusCode::UNAVAILABLE, "the daemon stops"});
}

bool Sessions::draining() const {
  base::MutexLock lock(mutex_);
  return draining_;
}

void Sessions::EndLater(block::SessionId session, const std::string& worker) {
  endings_.Post([cache = cache_, session, worker] {
    cache->EndSession(session);
    spdlog::info("detach session={:016x} worker=\"{}\"", cache->NameOf(session).value, worker);
  });
}

void Sessions::Forget(block::SessionId session) {
  {
    base::MutexLock lock(mutex_);
    streams_.erase(session);
  }
  if (on_end_ != nullptr) on_end_(session);
}

bool Sessions::Has(block::SessionId session) const {
  base::MutexLock lock(mutex_);
  return streams_.contains(session);
}

}  // namespace prefixd::daemon
