#include "client/worker/model_family.h"

#include <cmath>
#include <cstddef>
#include <string>

#include "absl/status/status.h"

#include "base/status.h"
#include "client/worker/config_fields.h"
#include "quant/codec.h"

namespace prefixd::worker {
namespace {

using nlohmann::json;

// Reads `scaling`, an object with rope_type, or type in older files.
absl::Status ReadScaling(const json& scaling, ModelConfig* model) {
  const json* type = Find(scaling, "rope_type");
  if (type == nullptr) type = Find(scaling, "type");
  if (type == nullptr || *type == json("default")) return absl::OkStatus();
  RopeScaling& rope = model->rope_scaling;
  PREFIXD_ASSIGN_OR_RETURN(rope.factor, PositiveOr(scaling, "factor", 1));
  if (*type == json("linear")) {
    rope.type = RopeScaling::Type::kLinear;
    return absl::OkStatus();
  }
  if (*type != json("llama3")) {
    return Refuse("rope_scaling.rope_type", type->dump(), "\"default\", \"linear\" and \"llama3\"");
  }
  rope.type = RopeScaling::Type::kLlama3;
  PREFIXD_ASSIGN_OR_RETURN(rope.low_frequency_factor, PositiveOr(scaling, "low_freq_factor", 1));
  PREFIXD_ASSIGN_OR_RETURN(rope.high_frequency_factor, PositiveOr(scaling, "high_freq_factor", 4));
  PREFIXD_ASSIGN_OR_RETURN(rope.original_tokens,
                           CountOr(scaling, "original_max_position_embeddings", 8192));
  if (rope.high_frequency_factor <= rope.low_frequency_factor) {
    return Refuse("rope_scaling.high_freq_factor", absl::StrCat(rope.high_frequency_factor),
                  absl::StrCat("more than low_freq_factor ", rope.low_frequency_factor));
  }
  return absl::OkStatus();
}

// Reads the layers' types: from a list, or from the interval between full layers.
absl::Status ReadLayerTypes(const json& config, const char* every_field, uint32_t every,
                            const char* other_name, const LayerShape& other, ModelConfig* model) {
  model->layer_shapes.assign(model->layers, other);
  const json* types = Find(config, "layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != model->layers)) {
    return Refuse("layer_types", types->dump(), absl::StrCat("a list of ", model->layers));
  }
  PREFIXD_ASSIGN_OR_RETURN(every, CountOr(config, every_field, every));
  for (uint32_t layer = 0; layer < model->layers; ++layer) {
    if (types != nullptr && (*types)[layer] != json("full_attention") &&
        (*types)[layer] != json(other_name)) {
      return Refuse("layer_types", (*types)[layer].dump(),
                    absl::StrCat("\"full_attention\" and \"", other_name, "\""));
    }
    const bool full =
        types != nullptr ? (*types)[layer] == json("full_attention") : (layer + 1) % every == 0;
    if (full) model->layer_shapes[layer] = {};
  }
  return absl::OkStatus();
}

absl::Status ReadGemma3(const json& config, ModelConfig* model) {
  model->head_norms = model->block_norms = model->zero_centered_norms = true;
  model->activation = Activation::kGeluTanh;
  const double scalar_default = model->head_dim;
  PREFIXD_ASSIGN_OR_RETURN(const double scalar,
                           PositiveOr(config, "query_pre_attn_scalar", scalar_default));
  model->attention_scale = static_cast<float>(1 / std::sqrt(scalar));
  // The reference multiplies by the root in the checkpoint's bfloat16.
  const float root = std::sqrt(static_cast<float>(model->hidden_size));
  model->embedding_scale = quant::Bf16ToFloat(quant::FloatToBf16(root));
  PREFIXD_ASSIGN_OR_RETURN(model->local_rope_theta,
                           PositiveOr(config, "rope_local_base_freq", 10000.0));
  LayerShape sliding{.type = LayerType::kSliding, .local_rope = true};
  PREFIXD_ASSIGN_OR_RETURN(sliding.window, CountOr(config, "sliding_window", 512));
  return ReadLayerTypes(config, "sliding_window_pattern", 6, "sliding_attention", sliding, model);
}

absl::Status ReadQwen3Next(const json& config, ModelConfig* model) {
  model->head_norms = model->zero_centered_norms = model->gated_attention = true;
  PREFIXD_ASSIGN_OR_RETURN(const double turning, PositiveOr(config, "partial_rotary_factor", 0.25));
  model->rotary_dim = static_cast<uint32_t>(std::lround(turning * model->head_dim));
  if (model->rotary_dim > model->head_dim || model->rotary_dim % 2 != 0) {
    return Refuse("partial_rotary_factor", absl::StrCat(turning),
                  absl::StrCat("an even part of head_dim ", model->head_dim));
  }
  DeltaShape& delta = model->delta;
  PREFIXD_ASSIGN_OR_RETURN(delta.key_heads, Count(config, "linear_num_key_heads"));
  PREFIXD_ASSIGN_OR_RETURN(delta.value_heads, Count(config, "linear_num_value_heads"));
  PREFIXD_ASSIGN_OR_RETURN(delta.key_dim, Count(config, "linear_key_head_dim"));
  PREFIXD_ASSIGN_OR_RETURN(delta.value_dim, Count(config, "linear_value_head_dim"));
  PREFIXD_ASSIGN_OR_RETURN(delta.convolution, Count(config, "linear_conv_kernel_dim"));
  if (delta.value_heads % delta.key_heads != 0) {
    return Refuse("linear_num_value_heads", absl::StrCat(delta.value_heads),
                  absl::StrCat("a multiple of linear_num_key_heads ", delta.key_heads));
  }
  return ReadLayerTypes(config, "full_attention_interval", 4, "linear_attention",
                        {.type = LayerType::kGatedDelta}, model);
}

}  // namespace

// Reads the model type first: a type that this file does not know may have unknown fields that
// change the arithmetic. The known types have no others.
absl::StatusOr<Family> ReadFamily(const json& config) {
  const json* type = Find(config, "model_type");
  if (type != nullptr && *type == json("llama")) return Family::kLlama;
  if (type != nullptr && *type == json("qwen2")) return Family::kQwen2;
  if (type != nullptr && *type == json("qwen3")) return Family::kQwen3;
  if (type != nullptr && *type == json("gemma3_text")) return Family::kGemma3;
  if (type != nullptr && *type == json("qwen3_next")) return Family::kQwen3Next;
  return Refuse("model_type", type == nullptr ? "absent" : type->dump(),
                "\"llama\", \"qwen2\", \"qwen3\", \"gemma3_text\" and \"qwen3_next\"");
}

absl::Status RefuseUnsupported(const json& config, Family family) {
  const bool gemma = family == Family::kGemma3;
  PREFIXD_RETURN_IF_ERROR(WantAbsentOr(config, gemma ? "hidden_activation" : "hidden_act",
                                       gemma ? "gelu_pytorch_tanh" : "silu"));
  if (family != Family::kQwen3Next) {
    PREFIXD_RETURN_IF_ERROR(WantAbsentOr(config, "partial_rotary_factor", 1.0));
    PREFIXD_RETURN_IF_ERROR(WantAbsent(config, "num_experts"));
  } else {
    PREFIXD_RETURN_IF_ERROR(WantAbsentOr(config, "num_experts", 0));
  }
  // Qwen's files name a window that is used only with use_sliding_window.
  PREFIXD_RETURN_IF_ERROR(WantAbsent(config, "use_sliding_window"));
  if (family == Family::kLlama) PREFIXD_RETURN_IF_ERROR(WantAbsent(config, "sliding_window"));
  for (const char* field : {"attention_bias", "mlp_bias", "quantization_config",
                            "attn_logit_softcapping", "final_logit_softcapping"}) {
    PREFIXD_RETURN_IF_ERROR(WantAbsent(config, field));
  }
  return absl::OkStatus();
}

// Newer files keep theta and the scaling in rope_parameters, older files at the top level.
absl::Status ReadRope(const json& config, Family family, ModelConfig* model) {
  const double otherwise = family == Family::kGemma3 ? 1e6 : 10000.0;
  const json* parameters = Find(config, "rope_parameters");
  const json* scaling = parameters != nullptr ? parameters : Find(config, "rope_scaling");
  if (scaling != nullptr && !scaling->is_object()) {
    return Refuse(parameters != nullptr ? "rope_parameters" : "rope_scaling", scaling->dump(),
                  "an object");
  }
  if (scaling != nullptr) PREFIXD_RETURN_IF_ERROR(ReadScaling(*scaling, model));
  PREFIXD_ASSIGN_OR_RETURN(
      model->rope_theta,
      PositiveOr(parameters != nullptr ? *parameters : config, "rope_theta", otherwise));
  return absl::OkStatus();
}

absl::Status ReadFamilyFields(const json& config, Family family, ModelConfig* model) {
  switch (family) {
    case Family::kLlama:
      return absl::OkStatus();
    case Family::kQwen2:
      model->attention_bias = true;
      return absl::OkStatus();
    case Family::kQwen3:
      model->head_norms = true;
      return absl::OkStatus();
    case Family::kGemma3:
      return ReadGemma3(config, model);
    case Family::kQwen3Next:
      return ReadQwen3Next(config, model);
  }
  return absl::InternalError("model config: unknown family");
}

}  // namespace prefixd::worker
