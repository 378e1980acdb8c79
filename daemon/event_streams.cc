#include "daemon/event_streams.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "daemon/call.h"
#include "daemon/message.h"
#include "wire/events.h"

namespace prefixd::daemon {
namespace {

// How long an event waits at most before listeners are told, so that nobody who stores tells
// anybody.
constexpr std::chrono::milliseconds kLookInterval(10);

class Refusal final : public EventStreams::Reactor {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

// Only the thread of EventStreams calls Write and Finish.
class EventStreams::Stream final : public EventStreams::Reactor {
 public:
  Stream(EventStreams* streams, std::unique_ptr<index::EventReader> reader,
         std::shared_ptr<void> held)
      : streams_(streams), reader_(std::move(reader)), held_(std::move(held)) {}

  void OnWriteDone(bool ok) override {
    const base::MutexLock lock(streams_->mutex_);
    writing_ = false;
    gone_ = gone_ || !ok;
    streams_->changed_.NotifyAll();
  }
  void OnCancel() override {
    const base::MutexLock lock(streams_->mutex_);
    gone_ = true;
    streams_->changed_.NotifyAll();
  }
  void OnDone() override { delete this; }

  // Require the mutex of `streams_`.
  bool gone() const { return gone_; }
  bool idle() const { return !writing_; }
  bool HasNext() const { return reader_->HasNext(); }
  void BeginWriting() { writing_ = true; }

  void Write(uint64_t epoch) {
    v1::WatchEventsReply reply;
    wire::ToProto(reader_->Next(), &reply);
    reply.set_epoch(epoch);
    message_.Clear();
    daemon::Write(reply, &message_).IgnoreError();  // fails only without memory
    StartWrite(&message_);
  }

 private:
  EventStreams* const streams_;
  const std::unique_ptr<index::EventReader> reader_;
  const std::shared_ptr<void> held_;
  grpc::ByteBuffer message_;             // gRPC's while it is written
  bool writing_ = false, gone_ = false;  // guarded by the mutex of `streams_`
};

EventStreams::EventStreams(cache::Cache* cache) : cache_(cache), thread_([this] { Run(); }) {}

EventStreams::~EventStreams() { Stop(); }

EventStreams::Reactor* EventStreams::Watch(const grpc::ByteBuffer& message,
                                           std::shared_ptr<void> held) {
  Call call(cache_, "rpc.watch_events");
  v1::WatchEventsRequest request;
  if (absl::Status read = ReadSmall(message, &request); !read.ok())
    return new Refusal(call.End(read));
  absl::StatusOr<block::EventQuery> query = wire::FromProto(request, cache_->epoch());
  if (!query.ok()) return new Refusal(call.End(query.status()));
  const base::MutexLock lock(mutex_);
  if (stopping_) return new Refusal(call.End(absl::UnavailableError("watch_events: stopping")));
  if (streams_.size() >= kMostStreams) {
    return new Refusal(call.End(absl::ResourceExhaustedError(
        absl::StrCat("watch_events: ", kMostStreams, " listen already, which is the most"))));
  }
  call.End(absl::OkStatus());
  auto* const stream = new Stream(this, cache_->FollowEvents(*std::move(query)), std::move(held));
  streams_.push_back(stream);
  changed_.NotifyAll();
  return stream;
}

void EventStreams::Stop() {
  {
    const base::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::vector<EventStreams::Stream*> EventStreams::WaitForWork() {
  const base::MutexLock lock(mutex_);
  for (;;) {
    std::vector<Stream*> work;
    bool waits = false;  // for events
    for (Stream* const stream : streams_) {
      const bool next = stream->idle() && stream->HasNext();
      waits = waits || (stream->idle() && !next);
      if (stream->gone() || next || stopping_) work.push_back(stream);
    }
    if (!work.empty() || stopping_) return work;
    if (waits) {
      changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kLookInterval);
    } else {
      changed_.Wait(mutex_);
    }
  }
}

void EventStreams::Run() {
  for (;;) {
    const std::vector<Stream*> work = WaitForWork();
    bool stopping = false;
    std::vector<Stream*> ended;
    {
      const base::MutexLock lock(mutex_);
      stopping = stopping_;
      for (Stream* const stream : work) {
        if (stopping || stream->gone()) {
          ended.push_back(stream);
          std::erase(streams_, stream);
        } else {
          stream->BeginWriting();
        }
      }
    }
    for (Stream* const stream : work) {
      if (std::ranges::find(ended, stream) == ended.end()) stream->Write(cache_->epoch());
    }
    for (Stream* const stream : ended) {
      stream->Finish({grpc::StatusCode::UNAVAILABLE, "watch_events: prefixd stops"});
    }
    if (stopping && work.empty()) return;
  }
}

}  // namespace prefixd::daemon
