#include "daemon/tracing_settings.h"

#include <memory>
#include <utility>

#include "absl/strings/numbers.h"

#include "base/status.h"
#include "daemon/private_file.h"
#include "daemon/tracing/collector_headers.h"
#include "remote/transport.h"

namespace prefixd::daemon {
namespace {

constexpr size_t kMostHeadersFileBytes = 64 << 10;

void TurnOff(const char* variable, const absl::Status& why, Config::Tracing* tracing) {
  tracing->unusable = absl::StrCat(variable, ": ", std::string(why.message()));
  tracing->collector.reset();
}

absl::Status In(const std::string& where, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(where, ": ", std::string(status.message())));
}

void ResolveHeaders(const Environment& environment, Config::Tracing* tracing) {
  const bool is_auto = tracing->headers_file == "auto";
  if (is_auto || tracing->headers_file == "off") tracing->headers_file.clear();
  if (!is_auto) return;
  absl::StatusOr<std::string> headers = CollectorHeadersOfEnvironment(environment);
  if (!headers.ok()) return TurnOff("OTEL_EXPORTER_OTLP_HEADERS", headers.status(), tracing);
  tracing->headers = *std::move(headers);
}

void ResolveCaFile(const Environment& environment, Config::Tracing* tracing) {
  const bool is_auto = tracing->ca_file == "auto";
  if (is_auto || tracing->ca_file == "off") tracing->ca_file.clear();
  if (!is_auto || !tracing->collector->tls) return;
  tracing->ca_file = CollectorCaOfEnvironment(environment);
  const absl::Status usable = remote::TlsContext::Make({.ca_file = tracing->ca_file}).status();
  if (!usable.ok()) TurnOff("OTEL_EXPORTER_OTLP_CERTIFICATE", usable, tracing);
}

}  // namespace

absl::Status ApplyOtlpEndpoint(const std::string& value, const Environment& environment,
                               Config* config) {
  if (value == "off") return absl::OkStatus();
  const bool is_auto = value == "auto";
  const std::string url = is_auto ? CollectorOfEnvironment(environment) : value;
  if (is_auto && url.empty()) return absl::OkStatus();
  absl::StatusOr<CollectorAddress> address = ParseCollectorAddress(url);
  if (address.ok()) {
    config->tracing.collector = *std::move(address);
  } else if (is_auto) {
    config->tracing.unusable = std::string(address.status().message());
  } else {
    return address.status();
  }
  return absl::OkStatus();
}

absl::Status ApplyTraceRatio(const std::string& value, const Environment&, Config* config) {
  double& ratio = config->tracing.ratio;
  if (absl::SimpleAtod(value, &ratio) && ratio >= 0 && ratio <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", value, "\" is not a number from 0 to 1"));
}

absl::Status ResolveTracing(const Environment& environment, Config::Tracing* tracing) {
  if (!tracing->collector.has_value()) return absl::OkStatus();
  const bool is_named = tracing->ca_file != "auto" && tracing->ca_file != "off";
  if (is_named && !tracing->collector->tls) {
    return absl::InvalidArgumentError(absl::StrCat("otlp-ca-file: certificates are for TLS, and ",
                                                   ToString(*tracing->collector),
                                                   " has none; say https://"));
  }
  ResolveCaFile(environment, tracing);
  if (tracing->collector.has_value()) ResolveHeaders(environment, tracing);
  return absl::OkStatus();
}

absl::StatusOr<HttpServer> OpenCollector(const Config::Tracing& tracing) {
  HttpServer server{.address = *tracing.collector, .headers = tracing.headers};
  if (const std::string& file = tracing.headers_file; !file.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(const std::string text,
                             ReadPrivateFile("otlp-headers-file", file, kMostHeadersFileBytes));
    absl::StatusOr<std::string> headers = ParseCollectorHeaders(text);
    if (!headers.ok()) return In(absl::StrCat("otlp-headers-file: ", file), headers.status());
    server.headers = *std::move(headers);
  }
  if (server.address.tls) {
    auto tls = remote::TlsContext::Make({.ca_file = tracing.ca_file});
    if (!tls.ok()) return In("otlp-ca-file", tls.status());
    server.tls = *std::move(tls);
  }
  return server;
}

}  // namespace prefixd::daemon
