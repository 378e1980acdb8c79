#include "client/worker/prompts.h"

#include <iostream>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

#include "base/status.h"

namespace prefixd::worker {
namespace {

using nlohmann::json;

absl::StatusOr<std::vector<uint32_t>> Bytes(const std::string& text, const ModelConfig& config) {
  if (!config.byte_level()) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt: text needs a model whose tokens are bytes (vocab_size 256), ",
                     config.name, " has ", config.vocab_size, " tokens: give token ids"));
  }
  if (text.empty()) return absl::InvalidArgumentError("prompt: no text");
  std::vector<uint32_t> tokens;
  tokens.reserve(text.size());
  for (char c : text) tokens.push_back(static_cast<uint8_t>(c));
  return tokens;
}

absl::StatusOr<std::vector<uint32_t>> Checked(std::vector<uint32_t> tokens,
                                              const ModelConfig& config) {
  if (tokens.empty()) return absl::InvalidArgumentError("prompt: no tokens");
  for (uint32_t token : tokens) {
    if (token >= config.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "prompt: token ", token, " is not in the vocabulary of ", config.vocab_size));
    }
  }
  return tokens;
}

absl::StatusOr<std::vector<uint32_t>> JsonTokens(const json& list, const ModelConfig& config) {
  if (!list.is_array()) return absl::InvalidArgumentError("prompt: tokens is not a list");
  std::vector<uint32_t> tokens;
  tokens.reserve(list.size());
  for (const json& token : list) {
    if (!token.is_number_unsigned() || token.get<uint64_t>() >= config.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "prompt: token ", token.dump(), " is not in the vocabulary of ", config.vocab_size));
    }
    tokens.push_back(token.get<uint32_t>());
  }
  return Checked(std::move(tokens), config);
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("prompt: cannot read ", path));
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

absl::StatusOr<Prompt> Single(absl::StatusOr<std::vector<uint32_t>> tokens) {
  PREFIXD_RETURN_IF_ERROR(tokens.status());
  return Prompt{.id = "", .tokens = *std::move(tokens)};
}

}  // namespace

absl::StatusOr<Prompt> ParsePromptLine(const std::string& line, const ModelConfig& config) {
  const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("prompt: not a JSON object");
  for (const auto& [key, value] : object.items()) {
    if (key != "id" && key != "prompt" && key != "tokens") {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt: unknown field \"", key, "\", choose id, prompt and tokens"));
    }
  }
  if (object.contains("prompt") == object.contains("tokens")) {
    return absl::InvalidArgumentError("prompt: give either prompt or tokens");
  }
  Prompt prompt;
  if (const auto id = object.find("id"); id != object.end()) {
    prompt.id = id->is_string() ? id->get<std::string>() : id->dump();
  }
  if (object.contains("tokens")) {
    PREFIXD_ASSIGN_OR_RETURN(prompt.tokens, JsonTokens(object["tokens"], config));
    return prompt;
  }
  if (!object["prompt"].is_string()) {
    return absl::InvalidArgumentError("prompt: prompt is not a string");
  }
  PREFIXD_ASSIGN_OR_RETURN(prompt.tokens, Bytes(object["prompt"].get<std::string>(), config));
  return prompt;
}

absl::StatusOr<PromptSource> PromptSource::Open(const Options& options, const ModelConfig& config) {
  PromptSource source(config);
  if (options.prompts_file == "-") {
    source.lines_ = &std::cin;
  } else if (!options.prompts_file.empty()) {
    source.file_ = std::make_unique<std::ifstream>(options.prompts_file, std::ios::binary);
    if (!*source.file_) {
      return absl::NotFoundError(absl::StrCat("prompt: cannot read ", options.prompts_file));
    }
    source.lines_ = source.file_.get();
  } else if (!options.prompt_file.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.prompt_file));
    source.single_ = Single(Bytes(text, config));
  } else if (options.prompt.has_value()) {
    source.single_ = Single(Bytes(*options.prompt, config));
  } else {
    source.single_ = Single(Checked(options.tokens, config));
  }
  return source;
}

absl::StatusOr<std::optional<Prompt>> PromptSource::Next() {
  if (single_.has_value()) {
    absl::StatusOr<Prompt> prompt = *std::exchange(single_, std::nullopt);
    PREFIXD_RETURN_IF_ERROR(prompt.status());
    return std::optional(*std::move(prompt));
  }
  std::string line;
  while (lines_ != nullptr && std::getline(*lines_, line)) {
    ++line_number_;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    absl::StatusOr<Prompt> prompt = ParsePromptLine(line, config_);
    if (prompt.ok()) return std::optional(*std::move(prompt));
    return absl::Status(
        prompt.status().code(),
        absl::StrCat("line ", line_number_, ": ", std::string(prompt.status().message())));
  }
  return std::optional<Prompt>();
}

}  // namespace prefixd::worker
