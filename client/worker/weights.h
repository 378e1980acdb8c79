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

#include "client/worker/matrix.h"
#include "client/worker/model_config.h"

namespace prefixd::worker {

using SharedMatrix = std::shared_ptr<const Matrix>;

struct LayerWeights {
  std::vector<float> attention_norm;  // [hidden]
  std::vector<float> mlp_norm;        // [hidden]
  SharedMatrix qkv;                   // [q heads * dim | kv heads * dim | kv heads * dim, hidden]
  SharedMatrix attention_out;         // [hidden, q heads * dim]
  SharedMatrix gate_up;               // [intermediate | intermediate, hidden]
  SharedMatrix down;                  // [hidden, intermediate]
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
