// Every family against mlx-lm: tests/data/tiny was made by make.py, the logits there by mlx-lm in
// float32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/worker/tiny_models.h"

namespace prefixd::worker {
namespace {

constexpr float kWorst = 2e-3F;  // logits are up to 35; rounding of float32 alone

class FamiliesTest : public ::testing::TestWithParam<std::string> {
 protected:
  FamiliesTest() : golden_(GoldenLogits(GetParam())) {}

  // Of the logits at `position`, when it is golden.
  void Compare(Rig& rig, uint32_t position) {
    const auto found = std::find(kGoldenPositions.begin(), kGoldenPositions.end(), position);
    if (found == kGoldenPositions.end()) return;
    const std::vector<float> logits = rig.Logits(position);
    const float* want =
        golden_.data() + static_cast<size_t>(found - kGoldenPositions.begin()) * kTinyVocabulary;
    for (size_t i = 0; i < kTinyVocabulary; ++i) {
      ASSERT_NEAR(logits[i], want[i], kWorst) << "position " << position << ", token " << i;
    }
    ++compared_;
  }

  const std::vector<float> golden_;
  size_t compared_ = 0;
};

TEST_P(FamiliesTest, PrefillInStepsComputesWhatMlxLmComputes) {
  Rig rig(TinyConfig(GetParam()), TinyWeights(GetParam()), Raw(Dtype::kF32));
  const std::vector<uint32_t> tokens = TinyTokens(kGoldenTokens);
  Sequence sequence = rig.cache.space.Begin(tokens);
  // Every position's logits are asked for: steps of one block, cut where a golden position is last.
  uint32_t begin = 0;
  for (const uint32_t position : kGoldenPositions) {
    ASSERT_NO_FATAL_FAILURE(rig.Prefill(sequence, tokens, begin, position + 1));
    ASSERT_NO_FATAL_FAILURE(Compare(rig, position));
    begin = position + 1;
  }
  EXPECT_EQ(compared_, kGoldenPositions.size());
}

TEST_P(FamiliesTest, DecodingTokenByTokenComputesTheSame) {
  Rig rig(TinyConfig(GetParam()), TinyWeights(GetParam()), Raw(Dtype::kF32));
  const std::vector<uint32_t> tokens = TinyTokens(kGoldenTokens);
  const std::span<const uint32_t> all(tokens);
  Sequence sequence = rig.cache.space.Begin(all.first(1));
  ASSERT_NO_FATAL_FAILURE(rig.Prefill(sequence, tokens, 0, 1));
  for (uint32_t position = 1; position < kGoldenTokens; ++position) {
    ASSERT_NO_FATAL_FAILURE(rig.Decode(sequence, all.first(position + 1)));
    ASSERT_NO_FATAL_FAILURE(Compare(rig, position));
  }
  EXPECT_EQ(compared_, kGoldenPositions.size() - 1);
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesTest, ::testing::ValuesIn(kTinyModels), [](const auto& name) {
  return name.param == "qwen3_next" ? "qwen3Next" : name.param;
});

}  // namespace
}  // namespace prefixd::worker
