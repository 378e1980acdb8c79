// A span: one operation of a trace, begun and ended. What OpenTelemetry calls so, as plain values.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "wire/trace_context.h"

namespace prefixd::daemon {

using wire::SpanId;
using wire::TraceContext;
using wire::TraceId;

using TraceTime = std::chrono::steady_clock::time_point;

// Text is UTF-8.
using AttributeValue = std::variant<int64_t, std::string>;
using Attributes = std::vector<std::pair<const char*, AttributeValue>>;

struct Span {
  enum class Kind { kInternal = 1, kServer = 2 };  // OpenTelemetry's numbers

  std::string name{};
  Kind kind = Kind::kInternal;
  TraceId trace_id{};
  SpanId id{};
  SpanId parent{};                   // zeros = none
  bool parent_is_remote = false;     // of another process
  std::string state{};               // tracestate
  int64_t begin_ns = 0, end_ns = 0;  // since 1970
  Attributes attributes{};
  bool failed = false;
  std::string error{};  // UTF-8
};
using Spans = std::vector<Span>;  // of one call, of one trace

}  // namespace prefixd::daemon
