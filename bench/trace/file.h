// A trace of requests as serving systems publish them: for each prompt the ids of its blocks of 512
// tokens, zstd-compressed JSON lines (fields: tests/data/traces/README.md).
//
// Plain values.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace prefixd::bench {

// A block is a node of the prefix tree: an id has one parent. Numbered from 0 in order of first
// use.
using TraceBlock = uint32_t;
inline constexpr uint32_t kTraceBlockTokens = 512;

struct Trace {
  struct Request {
    double at_ms = 0;  // since the trace began
    size_t first = 0;  // in `references`
    size_t blocks = 0;
  };
  std::vector<Request> requests;
  std::vector<TraceBlock> references;
  uint64_t unique = 0;  // different blocks

  std::span<const TraceBlock> blocks(const Request& request) const {
    return std::span(references).subspan(request.first, request.blocks);
  }
};

// NotFound for a file that cannot be read, InvalidArgument, naming the line, for one that is no
// trace: an id below two parents is one too. At most `max_requests` of it.
absl::StatusOr<Trace> ReadTrace(const std::string& path, size_t max_requests = ~size_t{0});

// A trace that has the text of its prompts ("input"): their bytes as tokens. Same errors.
absl::StatusOr<std::vector<std::vector<uint32_t>>> ReadPrompts(const std::string& path,
                                                               size_t max_requests = ~size_t{0});

}  // namespace prefixd::bench
