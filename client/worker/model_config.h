// Reads a Hugging Face config.json of a decoder of the Llama, Qwen2, Qwen3, Gemma 3 (text) or
// Qwen3-Next (dense) family, and refuses what this worker would compute wrongly.
//
// Plain values.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/worker/layer_values.h"

namespace prefixd::worker {

enum class LayerType : uint8_t {
  kFull,        // attends on every token before
  kSliding,     // attends on the last `window` and the first `sink_tokens`
  kGatedDelta,  // keeps a state of constant size: linear attention and a short convolution
};
struct LayerShape {
  LayerType type = LayerType::kFull;
  uint32_t window = 0, sink_tokens = 0;  // kSliding
  bool local_rope = false;               // RoPE turns by local_rope_theta, unscaled
  bool operator==(const LayerShape&) const = default;
};

// How RoPE's frequencies differ from theta ^ (-2i / dim).
struct RopeScaling {
  enum class Type : uint8_t { kNone, kLinear, kLlama3 };
  Type type = Type::kNone;
  double factor = 1;
  // kLlama3: wavelengths above original / low are stretched by factor, those below original / high
  // are kept, and those between are interpolated.
  double low_frequency_factor = 1, high_frequency_factor = 4;
  uint32_t original_tokens = 0;
};

struct ModelConfig {
  std::string name;  // for people: _name_or_path, or the checkpoint's folder
  uint32_t vocab_size = 0;
  uint32_t hidden_size = 0;
  uint32_t intermediate_size = 0;
  uint32_t layers = 0;
  uint32_t query_heads = 0;  // a multiple of kv_heads
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t max_tokens = 0;  // positions the model was made for: prompt and answer together
  float rms_norm_eps = 0;
  double rope_theta = 0;
  bool tied_embeddings = false;
  std::vector<uint32_t> end_tokens;  // an answer stops before them; may be empty

  RopeScaling rope_scaling = {};
  double local_rope_theta = 0;  // 0 = no layer has it
  uint32_t rotary_dim = 0;      // first channels of a head, which RoPE turns; 0 = all
  float attention_scale = 0;    // 0 = 1 / sqrt(head_dim)
  float embedding_scale = 1;    // multiplies a token's vector
  Activation activation = Activation::kSilu;
  bool attention_bias = false;                // q, k and v have a bias
  bool head_norms = false;                    // q and k are normed head by head, before RoPE
  bool block_norms = false;                   // the outputs of attention and the MLP are normed too
  bool zero_centered_norms = false;           // a norm multiplies with 1 + weight
  bool gated_attention = false;               // the output of attention is multiplied with a gate
  std::vector<LayerShape> layer_shapes = {};  // one for each layer; empty = all are full
  DeltaShape delta = {};

  LayerShape layer(uint32_t index) const {
    return layer_shapes.empty() ? LayerShape{} : layer_shapes[index];
  }
  bool has(LayerType type) const;
  // True if token ids are byte values: such a model takes and gives text without a tokenizer.
  bool byte_level() const { return vocab_size == 256; }
};

// Parses a config.json. InvalidArgument says the field, what it holds and what this worker reads.
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text);

// Tokens that are always kept under mlx-lm's --max-kv-size. Layers that attend on every token then
// see only the first 4 and the last max - 4 tokens, as its rotating cache keeps them. Sliding
// layers and states stay as they are.
inline constexpr uint32_t kKeptTokens = 4;
// Applies --max-kv-size to `config`. InvalidArgument unless max_kv_size > kKeptTokens.
absl::Status LimitContext(uint32_t max_kv_size, ModelConfig* config);

// Reads `dir`/config.json. NotFound if it cannot be read.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& dir);

}  // namespace prefixd::worker
