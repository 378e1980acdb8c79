#include "daemon/tracing_settings.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"

#include "base/own_file.h"
#include "base/status.h"
#include "daemon/tracing/collector_headers.h"
#include "remote/transport.h"

namespace prefixd::daemon {
namespace {

constexpr size_t kMostHeadersFileBytes = 64 << 10;

absl::Status Off(const std::string& what, const absl::Status& why, Config* config) {
  config->tracing.unusable = absl::StrCat(what, ": ", std::string(why.message()));
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadHeadersFile(const std::string& path) {
  PREFIXD_ASSIGN_OR_RETURN(
      const std::optional<std::string> text,
      base::ReadOwnFile(path, kMostHeadersFileBytes, base::ReadableBy::kOwnerAlone));
  if (!text.has_value())
    return absl::FailedPreconditionError(
        absl::StrCat("otlp-headers-file: there is no file ", path));
  absl::StatusOr<std::string> headers = ParseCollectorHeaders(*text);
  if (headers.ok()) return headers;
  return absl::InvalidArgumentError(
      absl::StrCat("otlp-headers-file: ", path, ": ", std::string(headers.status().message())));
}

}  // namespace

absl::Status ApplyOtlpEndpoint(const std::string& value, const Environment& environment,
                               Config* config) {
  if (value == "off") return absl::OkStatus();
  const bool is_auto = value == "auto";
  const std::string url = is_auto ? CollectorOfEnvironment(environment) : value;
  if (is_auto && url.empty()) return absl::OkStatus();
  absl::StatusOr<CollectorAddress> address = ParseCollectorAddress(url);
  if (!address.ok()) {
    return is_auto ? Off("OTEL_EXPORTER_OTLP_ENDPOINT", address.status(), config)
                   : address.status();
  }
  config->tracing.collector = *std::move(address);
  return absl::OkStatus();
}

absl::Status ApplyOtlpHeadersFile(const std::string& value, const Environment& environment,
                                  Config* config) {
  if (value == "off") return absl::OkStatus();
  if (value != "auto") {
    config->tracing.headers_file = value;
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> headers = CollectorHeadersOfEnvironment(environment);
  if (!headers.ok()) return Off("OTEL_EXPORTER_OTLP_HEADERS", headers.status(), config);
  config->tracing.headers = *std::move(headers);
  return absl::OkStatus();
}

absl::Status ApplyOtlpCaFile(const std::string& value, const Environment& environment,
                             Config* config) {
  if (value == "off") return absl::OkStatus();
  const bool is_auto = value == "auto";
  const std::string file = is_auto ? CollectorCaOfEnvironment(environment) : value;
  if (is_auto && file.empty()) return absl::OkStatus();
  const absl::Status read = remote::TlsContext::Make({.ca_file = file}).status();
  if (!read.ok()) return is_auto ? Off("OTEL_EXPORTER_OTLP_CERTIFICATE", read, config) : read;
  config->tracing.ca_file = file;
  return absl::OkStatus();
}

absl::Status ApplyTraceRatio(const std::string& value, const Environment&, Config* config) {
  double& ratio = config->tracing.ratio;
  if (absl::SimpleAtod(value, &ratio) && ratio >= 0 && ratio <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", value, "\" is not a number from 0 to 1"));
}

absl::StatusOr<HttpServer> OpenCollector(const Config::Tracing& tracing) {
  HttpServer server{.address = *tracing.collector, .headers = tracing.headers};
  if (!tracing.headers_file.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(server.headers, ReadHeadersFile(tracing.headers_file));
  }
  if (server.address.tls) {
    PREFIXD_ASSIGN_OR_RETURN(server.tls, remote::TlsContext::Make({.ca_file = tracing.ca_file}));
  }
  return server;
}

}  // namespace prefixd::daemon
