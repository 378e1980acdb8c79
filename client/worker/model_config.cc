#include "client/worker/model_config.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

#include "base/status.h"

namespace prefixd::worker {
namespace {

using nlohmann::json;

constexpr int64_t kMaxCount = 1 << 24;

absl::Status Refuse(const std::string& field, const std::string& seen, const std::string& want) {
  return absl::InvalidArgumentError(
      absl::StrCat("model config: ", field, " is ", seen, ", this worker reads ", want));
}

// Null stands for absent: checkpoints write both.
const json* Find(const json& config, const char* field) {
  const auto found = config.find(field);
  return found == config.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<uint32_t> Count(const json& config, const char* field) {
  const json* value = Find(config, field);
  if (value == nullptr) return Refuse(field, "absent", "a count");
  if (!value->is_number_integer() || value->get<int64_t>() < 1 ||
      value->get<int64_t>() > kMaxCount) {
    return Refuse(field, value->dump(), absl::StrCat("a count from 1 to ", kMaxCount));
  }
  return value->get<uint32_t>();
}

absl::StatusOr<uint32_t> CountOr(const json& config, const char* field, uint32_t otherwise) {
  if (Find(config, field) == nullptr) return otherwise;
  return Count(config, field);
}

absl::StatusOr<double> PositiveOr(const json& config, const char* field, double otherwise) {
  const json* value = Find(config, field);
  if (value == nullptr) return otherwise;
  if (!value->is_number() || !(value->get<double>() > 0) || !std::isfinite(value->get<double>())) {
    return Refuse(field, value->dump(), "a positive number");
  }
  return value->get<double>();
}

absl::Status WantOneOf(const json& config, const char* field, const json& wanted) {
  const json* value = Find(config, field);
  if (value == nullptr || *value == wanted) return absl::OkStatus();
  return Refuse(field, value->dump(), wanted.dump());
}

absl::Status WantAbsent(const json& config, const char* field) {
  const json* value = Find(config, field);
  if (value == nullptr || *value == json(false)) return absl::OkStatus();
  return Refuse(field, value->dump(), "checkpoints without it");
}

// What would change the arithmetic. A field not named here and unknown to us would too, hence the
// model type is checked first: a "llama" has no others.
absl::Status RefuseUnsupported(const json& config) {
  const json* type = Find(config, "model_type");
  if (type == nullptr || *type != json("llama")) {
    return Refuse("model_type", type == nullptr ? "absent" : type->dump(), "\"llama\"");
  }
  PREFIXD_RETURN_IF_ERROR(WantOneOf(config, "hidden_act", "silu"));
  PREFIXD_RETURN_IF_ERROR(WantOneOf(config, "partial_rotary_factor", 1.0));
  for (const char* field :
       {"attention_bias", "mlp_bias", "rope_scaling", "sliding_window", "quantization_config"}) {
    PREFIXD_RETURN_IF_ERROR(WantAbsent(config, field));
  }
  return absl::OkStatus();
}

// Newer files keep theta in rope_parameters, older ones at the top.
absl::StatusOr<double> RopeTheta(const json& config) {
  const json* parameters = Find(config, "rope_parameters");
  if (parameters == nullptr) return PositiveOr(config, "rope_theta", 10000.0);
  if (!parameters->is_object()) {
    return Refuse("rope_parameters", parameters->dump(), "an object");
  }
  PREFIXD_RETURN_IF_ERROR(WantOneOf(*parameters, "rope_type", "default"));
  return PositiveOr(*parameters, "rope_theta", 10000.0);
}

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
  PREFIXD_RETURN_IF_ERROR(RefuseUnsupported(config));

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
  PREFIXD_ASSIGN_OR_RETURN(model.rope_theta, RopeTheta(config));
  PREFIXD_ASSIGN_OR_RETURN(model.end_tokens, EndTokens(config, model.vocab_size));
  const json* tied = Find(config, "tie_word_embeddings");
  model.tied_embeddings = tied != nullptr && *tied == json(true);
  const json* name = Find(config, "_name_or_path");
  if (name != nullptr && name->is_string()) model.name = name->get<std::string>();
  PREFIXD_RETURN_IF_ERROR(CheckHeads(model));
  return model;
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
    std::error_code error;  // "." and "model/" have no last name; their real path has
    model.name = std::filesystem::canonical(dir, error).filename().string();
  }
  return model;
}

}  // namespace prefixd::worker
