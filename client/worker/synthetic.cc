#include "client/worker/synthetic.h"

#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "base/checksum.h"
#include "base/status.h"

namespace prefixd::worker {
namespace {

constexpr uint64_t kSeed = 20240611;
constexpr uint32_t kHeadRows = 4096;

// Returns a random number by SplitMix64. Every index has its own number, so any part can be made
// without the parts before it.
uint64_t Random(uint64_t stream, uint64_t index) {
  uint64_t z = (stream * 0xd1342543de82ef95U + index + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

// Fills `out` uniformly from [center - spread, center + spread), four from each random number.
void FillUniform(uint64_t stream, float center, float spread, std::span<float> out) {
  const float unit = spread / 32768.0F;
  for (size_t i = 0; i < out.size(); i += 4) {
    uint64_t bits = Random(stream, i / 4);
    for (size_t j = i; j < std::min(i + 4, out.size()); ++j, bits >>= 16) {
      out[j] = center + unit * static_cast<float>(static_cast<int16_t>(bits & 0xffff));
    }
  }
}

// Returns a matrix whose product keeps a vector's variance.
SharedMatrix RandomMatrix(uint64_t stream, uint32_t rows, uint32_t cols) {
  auto matrix = std::make_shared<Matrix>(rows, cols);
  FillUniform(stream, 0, std::sqrt(3.0F / static_cast<float>(cols)), matrix->values.span());
  return matrix;
}

std::vector<float> RandomNorm(uint64_t stream, uint32_t size) {
  std::vector<float> norm(size);
  FillUniform(stream, 1, 0.25F, norm);
  return norm;
}

// What each stream of random numbers is for. Embeddings and norms add the token or layer.
enum Stream : uint64_t {
  kQkv = kSeed,
  kAttentionOut,
  kGateUp,
  kDown,
  kHead,
  kHeadScale,
  kFinalNorm,
  kAttentionNorms = kSeed + (uint64_t{1} << 32),
  kMlpNorms = kSeed + (uint64_t{2} << 32),
  kEmbeddings = kSeed + (uint64_t{3} << 32),
};

}  // namespace

absl::StatusOr<ModelConfig> SyntheticConfig(const std::string& name, uint32_t layers) {
  ModelConfig config;
  if (name == "llama3-8b") {
    config = {.name = "synthetic/llama3-8b",
              .vocab_size = 128256,
              .hidden_size = 4096,
              .intermediate_size = 14336,
              .layers = 32,
              .query_heads = 32,
              .kv_heads = 8,
              .head_dim = 128,
              .max_tokens = 8192,
              .rms_norm_eps = 1e-5F,
              .rope_theta = 500000,
              .tied_embeddings = false,
              .end_tokens = {}};
  } else if (name == "qwen3-0.6b") {
    config = {.name = "synthetic/qwen3-0.6b",
              .vocab_size = 151936,
              .hidden_size = 1024,
              .intermediate_size = 3072,
              .layers = 28,
              .query_heads = 16,
              .kv_heads = 8,
              .head_dim = 128,
              .max_tokens = 40960,
              .rms_norm_eps = 1e-6F,
              .rope_theta = 1e6,
              .tied_embeddings = false,
              .end_tokens = {}};
  } else {
    return absl::InvalidArgumentError(absl::StrCat("synthetic: no geometry is named \"", name,
                                                   "\"; choose llama3-8b or qwen3-0.6b"));
  }
  if (layers > kMaxSyntheticLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("synthetic: ", layers, " layers, at most ", kMaxSyntheticLayers));
  }
  if (layers > 0) config.layers = layers;
  return config;
}

Weights SyntheticWeights(const ModelConfig& config) {
  const uint32_t hidden = config.hidden_size;
  const uint32_t query_width = config.query_heads * config.head_dim;
  const uint32_t kv_width = config.kv_heads * config.head_dim;
  const LayerWeights shared = {
      .attention_norm = {},
      .mlp_norm = {},
      .qkv = RandomMatrix(kQkv, query_width + 2 * kv_width, hidden),
      .attention_out = RandomMatrix(kAttentionOut, hidden, query_width),
      .gate_up = RandomMatrix(kGateUp, 2 * config.intermediate_size, hidden),
      .down = RandomMatrix(kDown, hidden, config.intermediate_size)};

  Weights weights;
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    weights.layers.push_back(shared);
    weights.layers.back().attention_norm = RandomNorm(kAttentionNorms + layer, hidden);
    weights.layers.back().mlp_norm = RandomNorm(kMlpNorms + layer, hidden);
  }
  weights.embed = [](uint32_t token, std::span<float> row) {
    FillUniform(kEmbeddings + token, 0, 1, row);
  };
  weights.final_norm = RandomNorm(kFinalNorm, hidden);
  weights.head.rows = RandomMatrix(kHead, kHeadRows, hidden);
  weights.head.scale.resize(config.vocab_size);
  FillUniform(kHeadScale, 1, 0.5F, weights.head.scale);
  return weights;
}

Digest SyntheticDigest(const ModelConfig& config) {
  const std::string text =
      absl::StrCat("prefixd synthetic 1 ", config.name, " layers ", config.layers, " seed ", kSeed);
  return base::Sha256(std::as_bytes(std::span(text)));
}

}  // namespace prefixd::worker
