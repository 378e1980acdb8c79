#include "client/worker/model_config.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

#include "base/status.h"
#include "client/worker/config_fields.h"
#include "client/worker/model_family.h"

namespace prefixd::worker {
namespace {

using nlohmann::json;

absl::StatusOr<std::vector<uint32_t>> EndTokens(const json& config, uint32_t vocab_size) {
  const json* value = Find(config, "eos_token_id");
  std::vector<uint32_t> tokens;
  if (value == nullptr) return tokens;
  for (const json& token : value->is_array() ? *value : json::array({*value})) {
    if (!token.is_number_integer() || token.get<int64_t>() < 0 ||
        token.get<int64_t>() >= vocab_size) {
      return Refuse("eos_token_id", value->dump(), absl::StrCat("ids below ", vocab_size));
    }
    tokens.push_back(token.get<uint32_t>());
  }
  return tokens;
}

absl::Status CheckHeads(const ModelConfig& config) {
  if (config.query_heads % config.kv_heads != 0) {
    return Refuse("num_key_value_heads", absl::StrCat(config.kv_heads),
                  absl::StrCat("a divisor of num_attention_heads ", config.query_heads));
  }
  if (config.head_dim % 8 != 0) {
    return Refuse("head_dim", absl::StrCat(config.head_dim), "a multiple of 8");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text) {
  const json config = json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::InvalidArgumentError("model config: not a JSON object");
  PREFIXD_ASSIGN_OR_RETURN(const Family family, ReadFamily(config));
  PREFIXD_RETURN_IF_ERROR(RefuseUnsupported(config, family));

  ModelConfig model;
  PREFIXD_ASSIGN_OR_RETURN(model.vocab_size, Count(config, "vocab_size"));
  PREFIXD_ASSIGN_OR_RETURN(model.hidden_size, Count(config, "hidden_size"));
  PREFIXD_ASSIGN_OR_RETURN(model.intermediate_size, Count(config, "intermediate_size"));
  PREFIXD_ASSIGN_OR_RETURN(model.layers, Count(config, "num_hidden_layers"));
  PREFIXD_ASSIGN_OR_RETURN(model.query_heads, Count(config, "num_attention_heads"));
  PREFIXD_ASSIGN_OR_RETURN(model.kv_heads,
                           CountOr(config, "num_key_value_heads", model.query_heads));
  PREFIXD_ASSIGN_OR_RETURN(model.head_dim,
                           CountOr(config, "head_dim", model.hidden_size / model.query_heads));
  PREFIXD_ASSIGN_OR_RETURN(model.max_tokens, CountOr(config, "max_position_embeddings", 2048));
  PREFIXD_ASSIGN_OR_RETURN(const double epsilon, PositiveOr(config, "rms_norm_eps", 1e-6));
  model.rms_norm_eps = static_cast<float>(epsilon);
  PREFIXD_RETURN_IF_ERROR(ReadRope(config, family, &model));
  PREFIXD_ASSIGN_OR_RETURN(model.end_tokens, EndTokens(config, model.vocab_size));
  PREFIXD_ASSIGN_OR_RETURN(model.tied_embeddings, FlagOr(config, "tie_word_embeddings",
                                                         /*otherwise=*/family == Family::kGemma3));
  const json* name = Find(config, "_name_or_path");
  if (name != nullptr && name->is_string()) model.name = name->get<std::string>();
  PREFIXD_RETURN_IF_ERROR(CheckHeads(model));
  PREFIXD_RETURN_IF_ERROR(ReadFamilyFields(config, family, &model));
  return model;
}

bool ModelConfig::has(LayerType type) const {
  if (layer_shapes.empty()) return type == LayerType::kFull;
  return std::any_of(layer_shapes.begin(), layer_shapes.end(),
                     [&](const LayerShape& shape) { return shape.type == type; });
}

absl::Status LimitContext(uint32_t max_kv_size, ModelConfig* config) {
  if (max_kv_size <= kKeptTokens) {
    return absl::InvalidArgumentError(absl::StrCat("--max-kv-size: ", max_kv_size,
                                                   ", must be more than the ", kKeptTokens,
                                                   " first tokens that are always kept"));
  }
  if (config->layer_shapes.empty()) config->layer_shapes.resize(config->layers);
  for (LayerShape& shape : config->layer_shapes) {
    if (shape.type != LayerType::kFull) continue;
    shape.type = LayerType::kSliding;
    shape.window = max_kv_size - kKeptTokens;
    shape.sink_tokens = kKeptTokens;
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& dir) {
  const std::filesystem::path path = std::filesystem::path(dir) / "config.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("model config: cannot read ", path.string()));
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  PREFIXD_ASSIGN_OR_RETURN(ModelConfig model, ParseModelConfig(text));
  if (model.name.empty()) {
    std::error_code error;  // "." and "model/" have no last name, their real path has one
    model.name = std::filesystem::canonical(dir, error).filename().string();
  }
  return model;
}

}  // namespace prefixd::worker
