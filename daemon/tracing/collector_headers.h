// HTTP headers that a collector of spans wants: a key, or a tenant's name.
//
// Pure functions. Errors are InvalidArgument and quote no value: it may be secret.
#pragma once
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace prefixd::daemon {

// Reads lines "Name: value"; skips empty ones and those that begin with '#'. Returns the headers as
// HTTP has them, each with its line break; at most 8 KiB. Refuses what prefixd sends itself.
absl::StatusOr<std::string> ParseCollectorHeaders(const std::string& text);

// The same of OpenTelemetry's variables: OTEL_EXPORTER_OTLP_TRACES_HEADERS, else
// OTEL_EXPORTER_OTLP_HEADERS: "name=value,name=value", values percent-encoded.
absl::StatusOr<std::string> CollectorHeadersOfEnvironment(
    const std::map<std::string, std::string>& environment);

}  // namespace prefixd::daemon
