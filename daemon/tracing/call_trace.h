// One traced call while it is handled: its server span, and below it one for each phase.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/tracing/span.h"
#include "daemon/tracing/tracer.h"
#include "wire/trace_context.h"

namespace prefixd::daemon {

// Returns the context that a call came with; nullopt without a valid traceparent. Of two
// traceparents none counts.
std::optional<TraceContext> ContextOf(const grpc::ServerContextBase& context);
// " trace_id=4bf9...", for the log, or "".
std::string TraceIdNote(const grpc::ServerContextBase& context);

// Belongs to one call; not thread-safe.
class CallTrace {
 public:
  static constexpr size_t kMostPhases = 32;  // further ones of a call are left out
  static constexpr size_t kMostTextBytes = 256;

  struct Rpc {
    std::string service;  // "prefixd.v1.PrefixCache"
    const char* verb;     // the call's counter: "rpc.open_space"
  };
  // Returns null for a call that is not traced. Requires: `tracer` is not null.
  static std::unique_ptr<CallTrace> Begin(Tracer* tracer, const grpc::ServerContextBase& context,
                                          const Rpc& rpc);
  // Ends the spans of a call that nobody ended, as cancelled.
  ~CallTrace();
  CallTrace(const CallTrace&) = delete;
  CallTrace& operator=(const CallTrace&) = delete;

  // Attributes of the call. Text is cut, and need not be UTF-8.
  void Set(const char* key, int64_t value);
  void Set(const char* key, const std::string& value);
  // A phase of the call: "prefixd.match".
  void Phase(const char* name, TraceTime begin, TraceTime end);
  // The phases of an Acquire of `set`, which began at `begin`. Of the first set of a call, the
  // attributes too: those of its first answer.
  void Acquired(std::span<const cache::Request> requests, std::span<const cache::Acquired> set,
                TraceTime begin);
  // The phase and attributes of a commit that began at `begin`.
  void Committed(const block::CommitAnswer& answer, TraceTime begin);
  // Call it once, last: the spans are on their way.
  void End(const grpc::Status& status);

 private:
  CallTrace(Tracer* tracer, const std::optional<TraceContext>& parent, const Rpc& rpc);
  int64_t Nanos(TraceTime time) const;
  void Load(const cache::Acquired& acquired);

  Tracer* const tracer_;
  const std::string verb_;  // "acquire", as the metrics have it
  const bool is_acquire_;
  const TraceTime begin_;
  const int64_t begin_ns_;  // of the same moment
  bool described_ = false;
  Spans spans_;  // the server's span first; empty once it has ended
};

}  // namespace prefixd::daemon
