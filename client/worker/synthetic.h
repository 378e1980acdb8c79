// Models with the geometry of a real model and seeded random weights: same KV bytes, same products,
// no checkpoint. They serve for budgets, layer groups and 128-wide heads, not for text.
//
// To fit a small machine, the layers share one set of matrices and differ in their norms.
// Embeddings are computed from the token. The output head folds the vocabulary onto 4,096 rows,
// with a factor for each token. So llama3-8b takes 1 GB with any number of layers.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "client/worker/model_config.h"
#include "client/worker/weights.h"
#include "prefixd/client.h"

namespace prefixd::worker {

inline constexpr uint32_t kMaxSyntheticLayers = 256;

// Returns the geometry of `name`: "llama3-8b" or "qwen3-0.6b". layers 0 = as many as the real model
// has. InvalidArgument lists the names.
absl::StatusOr<ModelConfig> SyntheticConfig(const std::string& name, uint32_t layers);

// Returns weights with the same numbers on every machine.
Weights SyntheticWeights(const ModelConfig& config);

// Returns a digest of the seed and the geometry, which stands for the weights' digest.
Digest SyntheticDigest(const ModelConfig& config);

}  // namespace prefixd::worker
