// W3C Trace Context: to which trace a call belongs, as its headers traceparent and tracestate say.
//
// Pure functions. Nothing here fails a call: what is not well formed is as if it were not there.
#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace prefixd::wire {

using TraceId = std::array<std::byte, 16>;
using SpanId = std::array<std::byte, 8>;

struct TraceContext {
  TraceId trace_id{};  // never all zero
  SpanId span_id{};    // the caller's span; never all zero
  bool sampled = false;
  std::string state{};  // tracestate; empty = none
};

// Reads "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01". Returns nullopt for all that the
// specification calls invalid: version ff, ids of zeros, upper-case digits, another length. A later
// version may go on behind a further dash; what stands there is not read.
std::optional<TraceContext> ParseTraceparent(std::string_view text);

// Returns whether `text` is a list of at most 32 members and kMostStateBytes bytes.
inline constexpr size_t kMostStateBytes = 512;
bool IsTracestate(std::string_view text);

// The value of traceparent for the bearer of this context.
std::string Traceparent(const TraceContext& context);

}  // namespace prefixd::wire
