// A decoder's weights, in float32 whatever the checkpoint holds.
//
// Plain values; matrices are shared and never change after loading, so reading needs no lock.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/worker/gated_delta.h"
#include "client/worker/matrix.h"
#include "client/worker/model_config.h"

namespace prefixd::worker {

// Norms hold the factors of a vector, also if the checkpoint stores the factors less 1.
struct LayerWeights {
  std::vector<float> attention_norm;  // [hidden]; for a delta layer's input too
  std::vector<float> mlp_norm;        // [hidden]
  // [q heads * dim | kv heads * dim | kv heads * dim, hidden].
  // With gated_attention the gates, [q heads * dim], follow. Null in a delta layer.
  SharedMatrix qkv;
  SharedMatrix attention_out;  // [hidden, q heads * dim]; null in a delta layer
  SharedMatrix gate_up;        // [intermediate | intermediate, hidden]
  SharedMatrix down;           // [hidden, intermediate]
  // Empty unless ModelConfig says that the model has them.
  std::vector<float> qkv_bias = {};                               // [q | k | v]
  std::vector<float> query_norm = {}, key_norm = {};              // [head_dim]
  std::vector<float> attention_out_norm = {}, mlp_out_norm = {};  // [hidden]
  DeltaWeights delta = {};                                        // weights of a kGatedDelta layer
};

// logit(token) = scale[token] * (rows[token % rows.rows] . hidden). A checkpoint has one row for
// each token and no scales. A synthetic model folds its vocabulary, see synthetic.h.
struct OutputHead {
  SharedMatrix rows;
  std::vector<float> scale;  // [vocab], or empty
};

struct Weights {
  std::function<void(uint32_t token, std::span<float> row)> embed;
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [hidden]
  OutputHead head;
};

// Reads *.safetensors of `dir`: one file, or the shards that model.safetensors.index.json names, in
// bf16, f16 or f32. Errors name the tensor, its shape and the shape that `config` wants.
absl::StatusOr<Weights> LoadWeights(const std::string& dir, const ModelConfig& config);

}  // namespace prefixd::worker
