// The settings of tracing, and what they make of the collector of spans.
//
// A function here that applies a value is one of the table in settings.cc. A variable of another
// program's setup that cannot be used does not keep prefixd from starting: tracing is off then, and
// Config::Tracing::unusable says why.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "daemon/config.h"
#include "daemon/tracing/http_post.h"

namespace prefixd::daemon {

absl::Status ApplyOtlpEndpoint(const std::string& value, const Environment& environment,
                               Config* config);
absl::Status ApplyOtlpHeadersFile(const std::string& value, const Environment& environment,
                                  Config* config);
absl::Status ApplyOtlpCaFile(const std::string& value, const Environment& environment,
                             Config* config);
absl::Status ApplyTraceRatio(const std::string& value, const Environment&, Config* config);

// Reads the files that the settings name. Requires a collector. FailedPrecondition: a file is not
// there, or others than its owner may read it; InvalidArgument: it holds no headers.
absl::StatusOr<HttpServer> OpenCollector(const Config::Tracing& tracing);

}  // namespace prefixd::daemon
