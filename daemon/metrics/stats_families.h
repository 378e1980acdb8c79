// Makes metrics of what the cache tells of itself.
//
// Pure functions, but for AddProcess, which asks the system.
#pragma once
#include "block/answer.h"
#include "daemon/metrics/families.h"

namespace prefixd::daemon {

// The histogram of calls, with a label `verb`.
inline constexpr char kRequestDuration[] = "prefixd_request_duration_seconds";

// Adds everything of `stats` but what SpaceSeries adds.
void AddStats(const block::Stats& stats, Families* families);

// Adds the metrics that every Prometheus client has of its process, and what the process made the
// disks write. Leaves out what the system does not tell.
void AddProcess(Families* families);

}  // namespace prefixd::daemon
