// The metrics as OpenMetrics 1.0.0, which has exemplars: a traced call beside the bucket of a
// histogram that counts it. prometheus-cpp writes Prometheus' text format alone.
//
// Format: https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "daemon/tracing/exemplars.h"
#include "prometheus/metric_family.h"

namespace prefixd::daemon {

inline constexpr char kOpenMetricsType[] =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

// Returns whether a client with this Accept header takes OpenMetrics 1.0.0, and likes no form of
// text/plain better.
bool PrefersOpenMetrics(std::string_view accept);

// Returns `families` as text. The buckets of kRequestDuration get exemplars; `exemplars`: null =
// none.
std::string WriteOpenMetrics(const std::vector<prometheus::MetricFamily>& families,
                             const Exemplars* exemplars);

}  // namespace prefixd::daemon
