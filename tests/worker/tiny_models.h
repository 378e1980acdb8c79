// The small checkpoints of tests/data/tiny, one for each family, and what mlx-lm computes from
// them.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/worker/shipped_model.h"

namespace prefixd::worker {

inline const std::vector<std::string> kTinyModels = {"qwen2", "qwen3", "llama3", "gemma3",
                                                     "qwen3_next"};
inline constexpr uint32_t kGoldenTokens = 300;
inline const std::vector<uint32_t> kGoldenPositions = {0,   1,   5,   63,  64,  65,  100, 126,
                                                       127, 128, 129, 131, 200, 255, 256, 299};
inline constexpr size_t kTinyVocabulary = 256;

inline std::string TinyFolder(const std::string& name) {
  return std::string(PREFIXD_TEST_DATA) + "/tiny/" + name;
}

// As tests/data/tiny/make.py makes them.
inline std::vector<uint32_t> TinyTokens(uint32_t count) {
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < count; ++i) tokens.push_back((i * 7919 + (i * i) % 251) % 256);
  return tokens;
}

// [position of kGoldenPositions][token]
inline std::vector<float> GoldenLogits(const std::string& name) {
  const std::string file = ReadTestFile(TinyFolder(name) + "/golden_logits_f32.npy");
  std::vector<float> values(kGoldenPositions.size() * kTinyVocabulary);
  const size_t bytes = values.size() * sizeof(float);
  EXPECT_NE(file.find("'descr': '<f4', 'fortran_order': False, 'shape': (16, 256)"),
            std::string::npos);
  std::memcpy(values.data(), file.data() + file.size() - bytes, bytes);
  return values;
}

inline ModelConfig TinyConfig(const std::string& name) {
  absl::StatusOr<ModelConfig> config = LoadModelConfig(TinyFolder(name));
  EXPECT_TRUE(config.ok()) << config.status();
  return *std::move(config);
}

inline Weights TinyWeights(const std::string& name) {
  absl::StatusOr<Weights> weights = LoadWeights(TinyFolder(name), TinyConfig(name));
  EXPECT_TRUE(weights.ok()) << weights.status();
  return *std::move(weights);
}

}  // namespace prefixd::worker
