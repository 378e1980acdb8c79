// Reads a trace from a file, whoever wrote it: its memory is bounded whatever the file says.
//
// Pure functions.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "sizing/request_line.h"
#include "sizing/trace.h"

namespace prefixd::sizing {

struct TraceOptions {
  uint32_t block_tokens = 64;          // where the trace has token ids or text
  uint32_t bytes_per_token = 4;        // of text
  LineKind kind = LineKind::kNothing;  // what the file holds; kNothing: what its first request is
  bool one_parent = false;             // a hash id below two others makes a line a bad one
  size_t most_requests = ~size_t{0};
  size_t most_references = size_t{1} << 26;  // 4 bytes each, and up to 40 for each new block
  size_t most_line_bytes = size_t{64} << 20;
};

struct ReadTrace {
  Trace trace;
  LineKind kind = LineKind::kNothing;
  uint64_t lines = 0;
  uint64_t bad_lines = 0;       // left out
  uint64_t first_bad_line = 0;  // its number, from 1
  const char* first_why = "";   // of static life
  bool cut = false;             // the file has more than most_references
};

// NotFound for a file that cannot be read; InvalidArgument, saying why, for one that is damaged
// or holds no request. What cannot be read is left out and counted; so are lines that are no
// request, but for those of a log, which are mostly others.
absl::StatusOr<ReadTrace> ReadTraceFile(const std::string& path, const TraceOptions& options);

}  // namespace prefixd::sizing
