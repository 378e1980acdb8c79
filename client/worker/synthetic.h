// Models that have the geometry of a real one and seeded random weights: same KV bytes, same
// products, no checkpoint. For budgets, layer groups and 128-wide heads, not for text.
//
// To fit a small machine the layers share one set of matrices and differ in their norms; embeddings
// are computed from the token, and the output head folds the vocabulary onto 4,096 rows, each token
// with a factor of its own. llama3-8b so takes 1 GB with any number of layers.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "client/worker/model_config.h"
#include "client/worker/weights.h"
#include "prefixd/client.h"

namespace prefixd::worker {

inline constexpr uint32_t kMaxSyntheticLayers = 256;

// `name`: "llama3-8b" or "qwen3-0.6b"; layers 0 = as many as the real one has. InvalidArgument
// lists the names.
absl::StatusOr<ModelConfig> SyntheticConfig(const std::string& name, uint32_t layers);

// The same numbers on every machine.
Weights SyntheticWeights(const ModelConfig& config);

// Stands for the weights' digest: of the seed and the geometry.
Digest SyntheticDigest(const ModelConfig& config);

}  // namespace prefixd::worker
