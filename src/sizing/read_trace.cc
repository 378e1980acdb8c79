#include "sizing/read_trace.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "sizing/lines.h"

namespace prefixd::sizing {
namespace {

constexpr TraceBlock kRoot = ~TraceBlock{0};

uint64_t Mixed(uint64_t name, uint64_t word) {
  name = (name ^ word) * 0x9e3779b97f4a7c15;
  name ^= name >> 29;
  name *= 0xd6e8feb86659fd93;
  return name ^ name >> 32;
}

// A block's name: what two blocks of one name are is one block. Of 64 bits, since one of two blocks
// of a name would only count as the other, and nobody has to gain by that.
uint64_t NameOf(TraceBlock parent, const auto& values) {
  uint64_t name = Mixed(Mixed(0, parent), values.size());
  for (const auto value : values) name = Mixed(name, static_cast<uint64_t>(value));
  return name;
}

class Builder {
 public:
  explicit Builder(const TraceOptions& options) : options_(options) {}

  // Returns null, or why the line is left out. Requires: it is a request.
  const char* Add(RequestLine line) {
    if (line.kind == LineKind::kBad) return line.why;
    if (kind_ == LineKind::kNothing)
      kind_ = options_.kind == LineKind::kNothing ? line.kind : options_.kind;
    if (line.kind != kind_) return "it is of another kind than the first, or than --format says";
    Trace::Request request{.first = trace_.references.size()};
    const char* const why = line.kind == LineKind::kHashes   ? AddHashes(line, &request)
                            : line.kind == LineKind::kTokens ? AddTokens(line, &request)
                                                             : AddText(line, &request);
    if (why != nullptr) {
      trace_.references.resize(request.first);
      return why;
    }
    request.blocks = trace_.references.size() - request.first;
    if (!began_ && line.has_time) began_ms_ = line.at_ms;
    began_ |= line.has_time;
    request.at_ms = line.has_time ? line.at_ms - began_ms_ : 0;
    trace_.requests.push_back(request);
    return nullptr;
  }
  bool full() const {
    return trace_.requests.size() >= options_.most_requests ||
           trace_.references.size() >= options_.most_references;
  }
  size_t requests() const { return trace_.requests.size(); }
  size_t references() const { return trace_.references.size(); }
  LineKind kind() const { return kind_; }
  Trace Take() {
    trace_.unique = trace_.block_sizes.size();
    trace_.block_tokens = kind_ == LineKind::kHashes ? kTraceBlockTokens : options_.block_tokens;
    return std::move(trace_);
  }

 private:
  void Reference(uint64_t name, uint64_t tokens) {
    const auto number = static_cast<TraceBlock>(trace_.block_sizes.size());
    const auto [there, added] = numbers_.try_emplace(name, number);
    if (added) trace_.block_sizes.push_back(static_cast<uint32_t>(tokens));
    trace_.references.push_back(there->second);
  }
  TraceBlock parent(const Trace::Request& request) const {
    return trace_.references.size() == request.first ? kRoot : trace_.references.back();
  }

  // The last block of a prompt may be short: its id says it too.
  const char* AddHashes(const RequestLine& line, Trace::Request* request) {
    const uint64_t count = line.ids.size(), most = count * kTraceBlockTokens;
    const bool fits =
        line.tokens > 0 && line.tokens <= most && line.tokens + kTraceBlockTokens > most;
    request->tokens = fits ? line.tokens : most;
    for (size_t i = 0; i < count; ++i) {
      const TraceBlock above = parent(*request);
      if (options_.one_parent && parents_.try_emplace(line.ids[i], above).first->second != above) {
        return "an id is below two others";
      }
      Reference(NameOf(above, std::span(&line.ids[i], 1)),
                i + 1 < count ? kTraceBlockTokens : request->tokens - i * kTraceBlockTokens);
    }
    return nullptr;
  }
  const char* AddTokens(const RequestLine& line, Trace::Request* request) {
    request->tokens = line.ids.size();
    for (size_t at = 0; at < line.ids.size(); at += options_.block_tokens) {
      const auto slice = std::span(line.ids).subspan(
          at, std::min<size_t>(options_.block_tokens, line.ids.size() - at));
      Reference(NameOf(parent(*request), slice), slice.size());
    }
    return nullptr;
  }
  const char* AddText(const RequestLine& line, Trace::Request* request) {
    const size_t per_token = options_.bytes_per_token, step = options_.block_tokens * per_token;
    for (size_t at = 0; at < line.text.size(); at += step) {
      const std::string_view slice = std::string_view(line.text).substr(at, step);
      const uint64_t tokens = (slice.size() + per_token - 1) / per_token;
      Reference(NameOf(parent(*request), slice), tokens);
      request->tokens += tokens;
    }
    return nullptr;
  }

  const TraceOptions& options_;
  Trace trace_;
  LineKind kind_ = LineKind::kNothing;
  bool began_ = false;
  double began_ms_ = 0;
  absl::flat_hash_map<uint64_t, TraceBlock> numbers_;
  absl::flat_hash_map<int64_t, TraceBlock> parents_;  // one_parent
};

// Lines that are no requests, or none that can be read.
struct LeftOut {
  uint64_t lines = 0, first = 0;
  const char* why = "";
  void Add(uint64_t number, const char* reason) {
    if (lines++ > 0 && first < number) return;
    first = number;
    why = reason;
  }
  void Add(const LeftOut& more) {
    if (more.lines == 0) return;
    Add(more.first, more.why);
    lines += more.lines - 1;
  }
};

}  // namespace

absl::StatusOr<ReadTrace> ReadTraceFile(const std::string& path, const TraceOptions& options) {
  PREFIXD_ASSIGN_OR_RETURN(LineReader lines, LineReader::Open(path, options.most_line_bytes));
  Builder builder(options);
  LeftOut bad, other;
  bool is_log = false;
  for (std::string_view text; !builder.full() && lines.Next(&text);) {
    if (lines.cut()) {
      bad.Add(lines.number(), "it is longer than a line may be");
      continue;
    }
    RequestLine line = ReadRequestLine(text);
    if (line.kind == LineKind::kNothing) {
      if (!line.blank) other.Add(lines.number(), "it is no request");
      continue;
    }
    is_log |= line.from_log;
    if (const char* const why = builder.Add(std::move(line))) bad.Add(lines.number(), why);
  }
  PREFIXD_RETURN_IF_ERROR(lines.status());
  if (!is_log) bad.Add(other);
  if (builder.requests() == 0) {
    if (bad.lines == 0) bad = other;
    return absl::InvalidArgumentError(
        absl::StrCat("trace: ", path, " holds no request",
                     bad.lines > 0 ? absl::StrCat("; line ", bad.first, ": ", bad.why) : ""));
  }
  ReadTrace read{.trace = {},
                 .kind = builder.kind(),
                 .lines = lines.number(),
                 .bad_lines = bad.lines,
                 .first_bad_line = bad.first,
                 .first_why = bad.why,
                 .cut = builder.references() >= options.most_references};
  read.trace = builder.Take();
  return read;
}

}  // namespace prefixd::sizing
