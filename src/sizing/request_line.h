// One line of a trace or of an engine's log: what was asked.
//
// Pure functions.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace prefixd::sizing {

enum class LineKind : uint8_t {
  kNothing,  // no request, as most lines of a log
  kHashes,   // JSON with "hash_ids": one for each kTraceBlockTokens tokens
  kTokens,   // JSON with token ids, or a line of vLLM's log with "prompt_token_ids: [...]"
  kText,     // JSON with the text of a prompt, or messages
  kBad,      // a request that cannot be read; `why` says it
};

struct RequestLine {
  LineKind kind = LineKind::kNothing;
  bool blank = false;     // kNothing: there is nothing in it
  bool from_log = false;  // it is no JSON
  double at_ms = 0;
  bool has_time = false;
  uint64_t tokens = 0;        // "input_length"; 0: not said
  std::vector<int64_t> ids;   // kHashes, kTokens
  std::string text;           // kText
  const char* why = nullptr;  // kBad; of static life
};

// Reads JSON if the line begins with '{', else a line of a log. Fields that it knows: "hash_ids",
// "prompt_token_ids", "input_ids", "token_ids", "tokens", "prompt", "input", "text", "messages",
// "timestamp" (ms), "input_length"; those of an object "body" too.
RequestLine ReadRequestLine(std::string_view line);

}  // namespace prefixd::sizing
