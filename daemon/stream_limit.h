// Ends streams that their peer does not end: by time, and by silence.
#pragma once
#include <chrono>
#include <functional>
#include <memory>

#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"

namespace prefixd::daemon {

// Patience with streams of pages that move nothing: a Put that brings no message, a Fetch that
// nobody reads.
struct StreamPatience {
  std::chrono::milliseconds silence{30'000};  // after this they end
  // After this no drain waits for them; a Put has no thread until it goes on. Within `silence`.
  std::chrono::milliseconds linger{1'000};
};

// Calls back once, on one of gRPC's threads, unless it is disarmed before. Not thread-safe.
class StreamAlarm {
 public:
  StreamAlarm() = default;
  ~StreamAlarm() { Disarm(); }
  StreamAlarm(const StreamAlarm&) = delete;
  StreamAlarm& operator=(const StreamAlarm&) = delete;

  // Replaces what was armed before. `ring` may take a lock that is held while this is armed or
  // disarmed only after it has checked that it still matters.
  void Arm(std::chrono::milliseconds in, std::function<void()> ring);
  void Disarm() { alarm_.reset(); }

 private:
  // A new one for each Arm: its callback may come after it is gone.
  std::unique_ptr<grpc::Alarm> alarm_;
};

// Ends a stream. The caller hears `status`, not only that its call was cancelled; OnCancel follows.
void EndStream(grpc::ServerContextBase* context, const grpc::Status& status);

// Ends a stream after kMaxStream, and one without a deadline of its own after kDefaultDeadline.
// gRPC itself ends the streams that have a deadline.
class StreamLimit {
 public:
  explicit StreamLimit(grpc::ServerContextBase* context);
  ~StreamLimit();  // afterwards the context is not touched
  StreamLimit(const StreamLimit&) = delete;
  StreamLimit& operator=(const StreamLimit&) = delete;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // shared with the alarm's callback, which may outlive this
  StreamAlarm alarm_;
};

}  // namespace prefixd::daemon
