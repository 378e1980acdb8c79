// Ends a stream without a deadline of its own after kDefaultDeadline, so that a peer that stands
// still holds no thread for ever. gRPC itself ends the streams that have one.
#pragma once
#include <memory>

#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"

namespace prefixd::daemon {

class StreamDeadline {
 public:
  explicit StreamDeadline(grpc::ServerContextBase* context);
  ~StreamDeadline();  // afterwards the context is not touched
  StreamDeadline(const StreamDeadline&) = delete;
  StreamDeadline& operator=(const StreamDeadline&) = delete;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // with the alarm's callback, which may outlive this
  grpc::Alarm alarm_;
};

}  // namespace prefixd::daemon
