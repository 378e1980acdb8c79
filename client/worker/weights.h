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

// Norms are what a vector is multiplied with, also where checkpoints hold that less 1.
struct LayerWeights {
  std::vector<float> attention_norm;  // [hidden], of a delta layer's input too
  std::vector<float> mlp_norm;        // [hidden]
  // [q heads * dim | kv heads * dim | kv heads * dim, hidden], and with gated_attention behind it
  // the gates, [q heads * dim]. Null in a delta layer.
  SharedMatrix qkv;
  SharedMatrix attention_out;  // [hidden, q heads * dim]; null in a delta layer
  SharedMatrix gate_up;        // [intermediate | intermediate, hidden]
  SharedMatrix down;           // [hidden, intermediate]
  // What ModelConfig says the model has, else empty.
  std::vector<float> qkv_bias = {};                               // [q | k | v]
  std::vector<float> query_norm = {}, key_norm = {};              // [head_dim]
  std::vector<float> attention_out_norm = {}, mlp_out_norm = {};  // [hidden]
  DeltaWeights delta = {};                                        // of a kGatedDelta layer
};

// logit(token) = scale[token] * (rows[token % rows.rows] . hidden). A checkpoint has one row a
// token and no scales; a synthetic model folds its vocabulary, see synthetic.h.
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

// *.safetensors of `dir`, one file or the shards that model.safetensors.index.json names; bf16, f16
// and f32. Errors name the tensor, its shape and the shape that `config` wants.
absl::StatusOr<Weights> LoadWeights(const std::string& dir, const ModelConfig& config);

}  // namespace prefixd::worker
