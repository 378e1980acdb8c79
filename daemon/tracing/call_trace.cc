#include "daemon/tracing/call_trace.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "base/utf8.h"
#include "block/names.h"

namespace prefixd::daemon {
namespace {

using std::chrono::microseconds;

constexpr std::string_view kVerbPrefix = "rpc.";
constexpr std::string_view kAcquire = "acquire";

// Returns "OpenSpace" for "rpc.open_space".
std::string MethodOf(std::string_view verb) {
  std::string method;
  bool begins = true;
  for (const char c : verb.substr(kVerbPrefix.size())) {
    if (c != '_') method.push_back(begins ? static_cast<char>(std::toupper(c)) : c);
    begins = c == '_';
  }
  return method;
}

std::string_view Text(grpc::string_ref text) { return {text.data(), text.size()}; }

// Several values of tracestate are one list.
std::string StateOf(const grpc::ServerContextBase& context) {
  const auto [begin, end] = context.client_metadata().equal_range("tracestate");
  std::string state;
  for (auto it = begin; it != end && state.size() <= wire::kMostStateBytes; ++it) {
    if (!state.empty()) state.push_back(',');
    state.append(Text(it->second));
  }
  return wire::IsTracestate(state) ? state : "";
}

// The codes for which the server, not its caller, is at fault: OpenTelemetry has their spans fail.
bool IsServersFault(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DATA_LOSS:
      return true;
    default:
      return false;
  }
}

int64_t UnixNanosNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::optional<TraceContext> ContextOf(const grpc::ServerContextBase& context) {
  const auto [begin, end] = context.client_metadata().equal_range("traceparent");
  if (begin == end || std::next(begin) != end) return std::nullopt;
  std::optional<TraceContext> parent = wire::ParseTraceparent(Text(begin->second));
  if (parent.has_value()) parent->state = StateOf(context);
  return parent;
}

std::string TraceIdNote(const grpc::ServerContextBase& context) {
  const std::optional<TraceContext> parent = ContextOf(context);
  return parent.has_value() ? absl::StrCat(" trace_id=", base::ToHex(parent->trace_id)) : "";
}

std::unique_ptr<CallTrace> CallTrace::Begin(Tracer* tracer, const grpc::ServerContextBase& context,
                                            const Rpc& rpc) {
  const std::optional<TraceContext> parent = ContextOf(context);
  if (!tracer->Samples(parent)) return nullptr;
  return std::unique_ptr<CallTrace>(new CallTrace(tracer, parent, rpc));
}

CallTrace::CallTrace(Tracer* tracer, const std::optional<TraceContext>& parent, const Rpc& rpc)
    : tracer_(tracer),
      verb_(rpc.verb + kVerbPrefix.size()),
      is_acquire_(verb_ == kAcquire),
      begin_(std::chrono::steady_clock::now()),
      begin_ns_(UnixNanosNow()) {
  const std::string method = MethodOf(rpc.verb);
  Span& span = spans_.emplace_back();
  span.name = absl::StrCat(rpc.service, "/", method);
  span.kind = Span::Kind::kServer;
  span.id = NewSpanId();
  span.begin_ns = begin_ns_;
  if (parent.has_value()) {
    span.trace_id = parent->trace_id;
    span.parent = parent->span_id;
    span.parent_is_remote = true;
    span.state = parent->state;
  } else {
    span.trace_id = NewTraceId();
  }
  span.attributes = {
      {"rpc.system", std::string("grpc")}, {"rpc.service", rpc.service}, {"rpc.method", method}};
  if (is_acquire_) tracer_->loads().AcquireBegins();
}

CallTrace::~CallTrace() {
  if (!spans_.empty()) End(grpc::Status::CANCELLED);
}

int64_t CallTrace::Nanos(TraceTime time) const {
  return begin_ns_ + std::chrono::duration_cast<std::chrono::nanoseconds>(time - begin_).count();
}

void CallTrace::Set(const char* key, int64_t value) {
  spans_.front().attributes.emplace_back(key, value);
}

void CallTrace::Set(const char* key, const std::string& value) {
  spans_.front().attributes.emplace_back(key, base::Utf8Prefix(value, kMostTextBytes));
}

void CallTrace::Phase(const char* name, TraceTime begin, TraceTime end) {
  if (spans_.size() > kMostPhases) return;
  Span span;
  span.name = name;
  span.trace_id = spans_.front().trace_id;
  span.id = NewSpanId();
  span.parent = spans_.front().id;
  span.state = spans_.front().state;
  span.begin_ns = std::max(Nanos(begin), begin_ns_);
  span.end_ns = std::max(Nanos(end), span.begin_ns);
  spans_.push_back(std::move(span));
}

void CallTrace::Acquired(std::span<const cache::Request> requests,
                         std::span<const cache::Acquired> set, TraceTime begin) {
  const cache::PhaseTimes& times = set.front().times;
  const TraceTime waited = begin + microseconds(times.wait_us);
  const TraceTime matched = waited + microseconds(times.match_us);
  if (times.wait_us > 0) Phase("prefixd.wait", begin, waited);
  Phase("prefixd.match", waited, matched);
  Phase("prefixd.room", matched, matched + microseconds(times.room_us));
  for (const cache::Acquired& acquired : set) Load(acquired);
  if (std::exchange(described_, true)) return;
  const block::MatchAnswer& match = set.front().match;
  Set("prefixd.request_id", set.front().request_id);
  Set("prefixd.prompt_tokens", static_cast<int64_t>(requests.front().tokens.size()));
  Set("prefixd.matched_tokens", match.matched_tokens);
  Set("prefixd.cached_tokens", match.restorable_tokens);
  Set("prefixd.match", std::string(block::NameOf(match.kind)));
  Set("prefixd.ended_by", std::string(block::NameOf(match.ended_by)));
  Set("prefixd.ram_bytes", static_cast<int64_t>(match.ram_bytes));
  Set("prefixd.ssd_bytes", static_cast<int64_t>(match.ssd_bytes));
  Set("prefixd.remote_bytes", static_cast<int64_t>(match.remote_bytes));
  if (set.size() > 1) Set("prefixd.items", static_cast<int64_t>(set.size()));
}

void CallTrace::Load(const cache::Acquired& acquired) {
  std::set<uint32_t> groups;
  bool in_place = false;  // else the worker waits in Fetch, and nobody is told
  for (const block::LeasedPage& page : acquired.pages) {
    in_place = in_place || page.offset != block::kNoOffset;
    if (!page.in_ram && !page.absent()) groups.insert(page.group);
  }
  if (groups.empty() || !in_place) return;
  const TraceTime now = std::chrono::steady_clock::now();
  Span span;
  span.name = "prefixd.load";
  span.trace_id = spans_.front().trace_id;
  span.id = NewSpanId();
  span.parent = spans_.front().id;
  span.state = spans_.front().state;
  span.begin_ns = Nanos(now);
  span.attributes = {{"prefixd.ssd_bytes", static_cast<int64_t>(acquired.match.ssd_bytes)},
                     {"prefixd.remote_bytes", static_cast<int64_t>(acquired.match.remote_bytes)}};
  tracer_->loads().Begin(acquired.lease, {groups.begin(), groups.end()}, now, std::move(span));
}

void CallTrace::Committed(const block::CommitAnswer& answer, TraceTime begin) {
  Phase("prefixd.commit", begin, std::chrono::steady_clock::now());
  Set("prefixd.stored_tokens", answer.stored_tokens);
  Set("prefixd.duplicate_tokens", answer.duplicate_tokens);
}

void CallTrace::End(const grpc::Status& status) {
  if (is_acquire_) tracer_->loads().AcquireEnds();
  Set("rpc.grpc.status_code", static_cast<int64_t>(status.error_code()));
  Span& server = spans_.front();
  server.end_ns = std::max(Nanos(std::chrono::steady_clock::now()), begin_ns_);
  server.failed = IsServersFault(status.error_code());
  if (server.failed) server.error = base::Utf8Prefix(status.error_message(), kMostTextBytes);
  // The cache measures in whole microseconds: a phase never ends after its call.
  for (Span& span : spans_) {
    span.end_ns = std::min(span.end_ns, server.end_ns);
    span.begin_ns = std::min(span.begin_ns, span.end_ns);
  }
  tracer_->exemplars().Note(verb_,
                            {.trace_id = server.trace_id,
                             .span_id = server.id,
                             .seconds = static_cast<double>(server.end_ns - begin_ns_) * 1e-9,
                             .unix_s = static_cast<double>(server.end_ns) * 1e-9});
  tracer_->Take(std::exchange(spans_, {}));
}

}  // namespace prefixd::daemon
