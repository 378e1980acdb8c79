// Names where spans are posted: the URL of a collector's OTLP/HTTP receiver.
//
// Pure functions.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace prefixd::daemon {

struct CollectorAddress {
  std::string host{};  // a name, or an IP address without brackets
  uint16_t port = 0;
  std::string path{};  // "/v1/traces"; the query belongs to it
  bool tls = false;
};

// Reads "http://localhost:4318/v1/traces", or the same with https. A URL without a port means 80 or
// 443, one without a path "/v1/traces". InvalidArgument: the URL has a user before the host, or is
// none.
absl::StatusOr<CollectorAddress> ParseCollectorAddress(const std::string& url);

// "http://localhost:4318/v1/traces".
std::string ToString(const CollectorAddress& address);
// "localhost:4318", "[::1]:4318": what the header Host says.
std::string HostAndPort(const CollectorAddress& address);

// The file that OpenTelemetry's variables name with the authorities that sign a collector's
// certificate: OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE, else OTEL_EXPORTER_OTLP_CERTIFICATE; or "".
std::string CollectorCaOfEnvironment(const std::map<std::string, std::string>& environment);

// The URL that OpenTelemetry's variables give for traces: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT as it
// is, else OTEL_EXPORTER_OTLP_ENDPOINT with /v1/traces behind it. Empty if neither is set, if they
// are for another protocol than http/protobuf, or if OTEL_SDK_DISABLED is true.
std::string CollectorOfEnvironment(const std::map<std::string, std::string>& environment);

}  // namespace prefixd::daemon
