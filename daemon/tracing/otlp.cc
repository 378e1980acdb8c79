#include "daemon/tracing/otlp.h"

#include <algorithm>

#include "base/bytes.h"
#include "prefixd/otlp/trace.pb.h"

namespace prefixd::daemon {
namespace {

// The version of OpenTelemetry's semantic conventions that names the attributes rpc.*.
constexpr char kSchema[] = "https://opentelemetry.io/schemas/1.37.0";
constexpr uint32_t kSampledFlag = 1;

void Add(const char* key, const AttributeValue& value, otlp::KeyValue* to) {
  to->set_key(key);
  if (const auto* const number = std::get_if<int64_t>(&value)) {
    to->mutable_value()->set_int_value(*number);
  } else {
    to->mutable_value()->set_string_value(std::get<std::string>(value));
  }
}

void ToProto(const TraceResource& from, otlp::Resource* to) {
  const auto add = [to](const char* key, const std::string& value) {
    if (!value.empty()) Add(key, value, to->add_attributes());
  };
  add("service.name", from.service);
  add("service.version", from.version);
  add("service.instance.id", from.instance);
  add("host.name", from.host);
}

template <typename Id>
std::string Bytes(const Id& id) {
  return std::string(base::AsText(id));
}

void ToProto(const Span& from, otlp::Span* to) {
  to->set_trace_id(Bytes(from.trace_id));
  to->set_span_id(Bytes(from.id));
  to->set_trace_state(from.state);
  if (from.parent != SpanId{}) to->set_parent_span_id(Bytes(from.parent));
  to->set_name(from.name);
  to->set_kind(static_cast<otlp::Span::SpanKind>(from.kind));
  to->set_start_time_unix_nano(static_cast<uint64_t>(from.begin_ns));
  to->set_end_time_unix_nano(static_cast<uint64_t>(from.end_ns));
  for (const auto& [key, value] : from.attributes) Add(key, value, to->add_attributes());
  const uint32_t remote =
      from.parent_is_remote ? uint32_t{otlp::SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK} : 0u;
  to->set_flags(kSampledFlag | otlp::SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK | remote);
  if (!from.failed) return;
  to->mutable_status()->set_code(otlp::Status::STATUS_CODE_ERROR);
  to->mutable_status()->set_message(from.error);
}

}  // namespace

std::string ToOtlp(const TraceResource& resource, std::span<const Span> spans) {
  otlp::ExportTraceServiceRequest request;
  otlp::ResourceSpans* const all = request.add_resource_spans();
  ToProto(resource, all->mutable_resource());
  otlp::ScopeSpans* const scope = all->add_scope_spans();
  scope->mutable_scope()->set_name("prefixd");
  scope->mutable_scope()->set_version(resource.version);
  scope->set_schema_url(kSchema);
  for (const Span& span : spans) ToProto(span, scope->add_spans());
  return request.SerializeAsString();
}

PartialSuccess FromOtlp(const std::string& body) {
  otlp::ExportTraceServiceResponse response;
  if (!response.ParseFromString(body)) return {};
  const otlp::ExportTracePartialSuccess& partial = response.partial_success();
  return {.rejected = static_cast<uint64_t>(std::max<int64_t>(partial.rejected_spans(), 0)),
          .why = partial.error_message()};
}

}  // namespace prefixd::daemon
