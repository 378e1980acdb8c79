// The decoder against transformers: the numbers in tests/data/model were made by it in float32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "nlohmann/json.hpp"

#include "client/worker/generate.h"
#include "client/worker/report.h"
#include "tests/worker/shipped_model.h"

namespace prefixd::worker {
namespace {

constexpr uint32_t kRows = 64;
constexpr uint32_t kStride = 16;  // positions between rows
constexpr uint32_t kVocabulary = 256;

// A .npy file of little-endian float32 [kRows, kVocabulary]: a header, then the values to the end.
std::vector<float> ReadReferenceLogits() {
  const std::string file = ReadTestFile(kShippedModel + "/reference_logits_f32.npy");
  std::vector<float> values(size_t{kRows} * kVocabulary);
  const size_t bytes = values.size() * sizeof(float);
  EXPECT_EQ(file.substr(0, 6), "\x93NUMPY");
  EXPECT_NE(file.find("'descr': '<f4', 'fortran_order': False, 'shape': (64, 256)"),
            std::string::npos);
  EXPECT_GT(file.size(), bytes);
  std::memcpy(values.data(), file.data() + file.size() - bytes, bytes);
  return values;
}

TEST(ReferenceTest, LogitsOfHeldOutTextEqualTransformers) {
  const std::vector<float> reference = ReadReferenceLogits();
  const std::vector<uint32_t> tokens = HeldOutTokens(1024);
  const auto rig = ShippedRig(Raw(Dtype::kF32));
  Sequence sequence = rig->cache.space.Begin(tokens);
  float worst = 0;
  for (uint32_t begin = 0; begin < tokens.size(); begin = rig->model.StepEnd(begin)) {
    const uint32_t end = rig->model.StepEnd(begin);
    rig->Prefill(sequence, tokens, begin, end);
    for (uint32_t position = begin; position < end; position += kStride) {
      const std::vector<float> logits = rig->Logits(position);
      const float* want = reference.data() + size_t{position / kStride} * kVocabulary;
      for (uint32_t i = 0; i < kVocabulary; ++i) {
        ASSERT_FALSE(std::isnan(logits[i]));
        worst = std::max(worst, std::abs(logits[i] - want[i]));
      }
    }
  }
  EXPECT_LE(worst, 2e-3F);
  RecordProperty("worst_difference", std::to_string(worst));
}

// The same positions, each decoded as one token after the other.
TEST(ReferenceTest, DecodedLogitsEqualTransformersToo) {
  const std::vector<float> reference = ReadReferenceLogits();
  const std::vector<uint32_t> tokens = HeldOutTokens(161);
  const auto rig = ShippedRig(Raw(Dtype::kF32));
  const std::span<const uint32_t> all(tokens);
  Sequence sequence = rig->cache.space.Begin(all.first(1));
  rig->Prefill(sequence, tokens, 0, 1);
  float worst = 0;
  for (uint32_t position = 1; position < tokens.size(); ++position) {
    rig->Decode(sequence, all.first(position + 1));
    if (position % kStride != 0) continue;
    const std::vector<float> logits = rig->Logits(position);
    const float* want = reference.data() + size_t{position / kStride} * kVocabulary;
    for (uint32_t i = 0; i < kVocabulary; ++i) {
      worst = std::max(worst, std::abs(logits[i] - want[i]));
    }
  }
  EXPECT_LE(worst, 2e-3F);
}

TEST(ReferenceTest, GreedyTextEqualsTransformers) {
  const nlohmann::json reference =
      nlohmann::json::parse(ReadTestFile(kShippedModel + "/reference.json"));
  const std::string text = reference["prompt"];
  Prompt prompt;
  for (char c : text) prompt.tokens.push_back(static_cast<uint8_t>(c));
  const auto rig = ShippedRig(Raw(Dtype::kF32));
  const absl::StatusOr<Answer> answer =
      Generate(rig->model, rig->cache.space, prompt, {.max_tokens = 256});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(AnswerText(*answer, rig->model.config()),
            reference["greedy_continuation"].get<std::string>());
  EXPECT_EQ(answer->prompt_tokens, 512U);
  EXPECT_EQ(answer->used_tokens, 0U);
}

}  // namespace
}  // namespace prefixd::worker
