// What a Hugging Face config.json says about a Llama decoder, and refusal of what this worker would
// compute wrongly.
//
// Plain values.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace prefixd::worker {

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

  // Token id = byte value: such a model takes and gives text without a tokenizer.
  bool byte_level() const { return vocab_size == 256; }
};

// InvalidArgument says the field, what it holds and what this worker reads.
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text);

// `dir`/config.json; NotFound when there is none.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& dir);

}  // namespace prefixd::worker
