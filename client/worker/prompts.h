// The source of requests: one prompt of the command line, or many from JSON lines.
#pragma once
#include <cstdint>
#include <fstream>
#include <istream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/worker/model_config.h"
#include "client/worker/options.h"

namespace prefixd::worker {

struct Prompt {
  std::string id;
  std::vector<uint32_t> tokens;
};

// Parses one JSON line. InvalidArgument if it is not {"id": ..., "prompt": "text"} or
// {"id": ..., "tokens": [...]}, if a token is not in the vocabulary, or if it holds text for a
// model whose tokens are not bytes. Without an id the request has an empty one.
absl::StatusOr<Prompt> ParsePromptLine(const std::string& line, const ModelConfig& config);

// Reads the prompts that `options` names, each when Next() asks for it. One thread at a time.
class PromptSource {
 public:
  // NotFound when a file cannot be read.
  static absl::StatusOr<PromptSource> Open(const Options& options, const ModelConfig& config);

  // Returns the next request, nullopt at the end, or an error for one bad line. After an error the
  // next call reads on.
  absl::StatusOr<std::optional<Prompt>> Next();

 private:
  explicit PromptSource(const ModelConfig& config) : config_(config) {}
  std::optional<absl::StatusOr<Prompt>> single_;
  std::unique_ptr<std::ifstream> file_;
  std::istream* lines_ = nullptr;
  uint32_t line_number_ = 0;
  ModelConfig config_;
};

}  // namespace prefixd::worker
