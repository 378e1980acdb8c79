#include "trace.h"

#include <optional>
#include <utility>

#include "prefixd/client.h"
#include "wire/trace_context.h"

namespace prefixd {
namespace client {
namespace {

thread_local Trace trace_of_thread;

}  // namespace

const Trace& TraceOfThread() { return trace_of_thread; }

void CarryTrace(grpc::ClientContext* context) {
  if (trace_of_thread.parent.empty()) return;
  context->AddMetadata("traceparent", trace_of_thread.parent);
  if (!trace_of_thread.state.empty()) context->AddMetadata("tracestate", trace_of_thread.state);
}

TraceScope::TraceScope(const Trace& trace) : before_(std::exchange(trace_of_thread, trace)) {}

TraceScope::~TraceScope() { trace_of_thread = std::move(before_); }

}  // namespace client

Status SetTrace(const std::string& traceparent, const std::string& tracestate) {
  client::trace_of_thread = {};
  if (traceparent.empty()) return {};
  const std::optional<wire::TraceContext> parent = wire::ParseTraceparent(traceparent);
  if (!parent.has_value()) {
    return {StatusCode::kInvalidArgument,
            "trace: the traceparent is not well formed: 00-(32 hex digits)-(16 hex digits)-(2 hex "
            "digits), in lower case"};
  }
  client::trace_of_thread.parent = wire::Traceparent(*parent);
  if (wire::IsTracestate(tracestate)) client::trace_of_thread.state = tracestate;
  return {};
}

}  // namespace prefixd
