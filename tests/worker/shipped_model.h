// The shipped model, its reference values and the text it was not trained on, for tests of the
// worker.
#pragma once
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/worker/cache_space.h"
#include "client/worker/model.h"
#include "client/worker/model_config.h"
#include "client/worker/weights.h"

namespace prefixd::worker {

inline const std::string kShippedModel = std::string(PREFIXD_TEST_DATA) + "/model";

inline std::string ReadTestFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path << " cannot be read";
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

// The first `count` held-out bytes, a token each.
inline std::vector<uint32_t> HeldOutTokens(size_t count) {
  const std::string text = ReadTestFile(std::string(PREFIXD_TEST_DATA) + "/corpus/kjv_sample.txt");
  EXPECT_GE(text.size(), count);
  std::vector<uint32_t> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<uint8_t>(text[i]));
  return tokens;
}

// A model and a private space, without prefixd.
struct Rig {
  Rig(const ModelConfig& config, Weights weights, const KvFormat& format, uint32_t threads = 2,
      const AttentionModes& attention = {}, std::shared_ptr<Device> device = nullptr)
      : cache(OpenPrivate(config, format)),
        model(config, std::move(weights),
              {.formats = {format},
               .threads = threads,
               .attention = attention,
               .device = std::move(device)}) {
    model.UseGrid(cache.space.block_tokens());
  }

  static CacheSpace OpenPrivate(const ModelConfig& config, const KvFormat& format) {
    Options options;
    options.server = "none";
    absl::StatusOr<CacheSpace> cache =
        OpenCacheSpace(options, MakeSpaceSpec(config, IdentifySynthetic(config), {format}));
    EXPECT_TRUE(cache.ok()) << cache.status();
    return *std::move(cache);
  }

  // Computes [begin, end) of `tokens` by the grid.
  void Prefill(Sequence& sequence, std::span<const uint32_t> tokens, uint32_t begin, uint32_t end) {
    while (begin < end) {
      const uint32_t step_end = std::min(model.StepEnd(begin), end);
      const auto step = model.Prefill(
          sequence, {.tokens = tokens, .begin = begin, .end = step_end, .state = &state});
      ASSERT_TRUE(step.ok()) << step.status();
      begin = step_end;
    }
  }

  // Computes the last of `tokens`, which was not announced before.
  void Decode(Sequence& sequence, std::span<const uint32_t> tokens) {
    sequence.PushToken(tokens.back());
    const auto end = static_cast<uint32_t>(tokens.size());
    const auto step =
        model.Decode(sequence, {.tokens = tokens, .begin = end - 1, .end = end, .state = &state});
    ASSERT_TRUE(step.ok()) << step.status();
  }

  std::vector<float> Logits(uint32_t position) {
    const std::span<const float> logits = model.Logits(position);
    return {logits.begin(), logits.end()};
  }

  CacheSpace cache;
  Model model;
  RunningState state;  // of the one sequence that is computed
};

inline ModelConfig ShippedConfig() {
  absl::StatusOr<ModelConfig> config = LoadModelConfig(kShippedModel);
  EXPECT_TRUE(config.ok()) << config.status();
  return *std::move(config);
}

inline std::unique_ptr<Rig> ShippedRig(const KvFormat& format, uint32_t threads = 2,
                                       const AttentionModes& attention = {}) {
  const ModelConfig config = ShippedConfig();
  absl::StatusOr<Weights> weights = LoadWeights(kShippedModel, config);
  EXPECT_TRUE(weights.ok()) << weights.status();
  return std::make_unique<Rig>(config, *std::move(weights), format, threads, attention);
}

}  // namespace prefixd::worker
