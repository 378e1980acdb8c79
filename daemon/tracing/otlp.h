// Spans as OTLP's protobuf, and the collector's answer from it.
//
// Pure functions.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/tracing/span.h"

namespace prefixd::daemon {

// Who speaks: the attributes of the resource. Text is UTF-8.
struct TraceResource {
  std::string service = "prefixd";
  std::string version{};
  std::string instance{};  // of this start
  std::string host{};
};

// An ExportTraceServiceRequest.
std::string ToOtlp(const TraceResource& resource, std::span<const Span> spans);

// What an ExportTraceServiceResponse says that was refused. An answer that is none refuses nothing.
struct PartialSuccess {
  uint64_t rejected = 0;
  std::string why{};
};
PartialSuccess FromOtlp(const std::string& body);

}  // namespace prefixd::daemon
