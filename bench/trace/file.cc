#include "bench/trace/file.h"

#include <string_view>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "sizing/lines.h"
#include "sizing/read_trace.h"
#include "sizing/request_line.h"

namespace prefixd::bench {

absl::StatusOr<Trace> ReadTrace(const std::string& path, size_t max_requests) {
  PREFIXD_ASSIGN_OR_RETURN(sizing::ReadTrace read,
                           sizing::ReadTraceFile(path, {.kind = sizing::LineKind::kHashes,
                                                        .one_parent = true,
                                                        .most_requests = max_requests}));
  if (read.bad_lines == 0) return std::move(read.trace);
  return absl::InvalidArgumentError(
      absl::StrCat("trace: ", path, ": line ", read.first_bad_line, ": ", read.first_why));
}

absl::StatusOr<std::vector<std::vector<uint32_t>>> ReadPrompts(const std::string& path,
                                                               size_t max_requests) {
  constexpr size_t kMostLineBytes = size_t{64} << 20;
  PREFIXD_ASSIGN_OR_RETURN(sizing::LineReader lines,
                           sizing::LineReader::Open(path, kMostLineBytes));
  std::vector<std::vector<uint32_t>> prompts;
  for (std::string_view line; prompts.size() < max_requests && lines.Next(&line);) {
    const sizing::RequestLine request = sizing::ReadRequestLine(line);
    if (request.kind != sizing::LineKind::kText || request.text.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("trace: ", path, " line ", lines.number(), " has no text of a prompt"));
    }
    std::vector<uint32_t>& prompt = prompts.emplace_back();
    for (const char byte : request.text) prompt.push_back(static_cast<unsigned char>(byte));
  }
  PREFIXD_RETURN_IF_ERROR(lines.status());
  if (prompts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("trace: ", path, " is empty"));
  }
  return prompts;
}

}  // namespace prefixd::bench
