// A trace of requests as serving systems publish them: for each prompt the ids of its blocks of 512
// tokens, zstd-compressed JSON lines (fields: tests/data/traces/README.md).
//
// Plain values.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "sizing/trace.h"

namespace prefixd::bench {

using Trace = sizing::Trace;
using TraceBlock = sizing::TraceBlock;
inline constexpr uint32_t kTraceBlockTokens = sizing::kTraceBlockTokens;

// NotFound for a file that cannot be read, InvalidArgument, naming the line, for one that is no
// trace: an id below two parents is one too. At most `max_requests` of it.
absl::StatusOr<Trace> ReadTrace(const std::string& path, size_t max_requests = ~size_t{0});

// A trace that has the text of its prompts ("input"): their bytes as tokens. Same errors.
absl::StatusOr<std::vector<std::vector<uint32_t>>> ReadPrompts(const std::string& path,
                                                               size_t max_requests = ~size_t{0});

}  // namespace prefixd::bench
