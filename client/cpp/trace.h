// The trace to which a thread's calls belong (SetTrace of prefixd/client.h).
#pragma once
#include <grpcpp/client_context.h>

#include <string>

namespace prefixd::client {

struct Trace {
  std::string parent{}, state{};  // traceparent and tracestate, well formed; empty = none
};

// The calling thread's.
const Trace& TraceOfThread();
// Has a call that was not made yet carry it.
void CarryTrace(grpc::ClientContext* context);

// Makes a trace the calling thread's while this lives, for work that another thread asked for.
class TraceScope {
 public:
  explicit TraceScope(const Trace& trace);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace before_;
};

}  // namespace prefixd::client
