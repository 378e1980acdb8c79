// The settings of tracing, and what they make of the collector of spans.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "daemon/config.h"
#include "daemon/tracing/http_post.h"

namespace prefixd::daemon {

// Both apply a value: they are functions of the table in settings.cc.
absl::Status ApplyOtlpEndpoint(const std::string& value, const Environment& environment,
                               Config* config);
absl::Status ApplyTraceRatio(const std::string& value, const Environment&, Config* config);

// Puts what the environment says in the place of "auto", and nothing in that of "off". A variable
// of another program's setup that cannot be used does not keep prefixd from starting: tracing is
// off then, and `unusable` says why. Variables are looked at if there is a collector alone.
// InvalidArgument: a file of authorities was named for a collector that is reached without TLS.
absl::Status ResolveTracing(const Environment& environment, Config::Tracing* tracing);

// Reads the files that the settings name. Requires a collector. FailedPrecondition: the file of
// headers is not there, or others than its owner may read it; InvalidArgument: it holds no headers,
// or the file of authorities cannot be used.
absl::StatusOr<HttpServer> OpenCollector(const Config::Tracing& tracing);

}  // namespace prefixd::daemon
