#include "client/worker/synthetic.h"

#include <gtest/gtest.h>

#include "client/worker/generate.h"
#include "tests/worker/shipped_model.h"

namespace prefixd::worker {
namespace {

uint64_t BytesPerToken(const std::string& name, uint32_t layers, const KvFormat& format) {
  const absl::StatusOr<ModelConfig> config = SyntheticConfig(name, layers);
  EXPECT_TRUE(config.ok()) << config.status();
  return Rig::OpenPrivate(*config, format).space.payload_bytes_per_token();
}

// A2 seed-story: 447 tokens in this geometry are 27,234,816 bytes.
TEST(SyntheticTest, KvBytesAreThoseOfTheRealGeometry) {
  const KvFormat eight_bits = MlxAffine(8, 64, Dtype::kF16);
  EXPECT_EQ(BytesPerToken("qwen3-0.6b", 28, eight_bits), 60928U);
  EXPECT_EQ(BytesPerToken("qwen3-0.6b", 0, eight_bits), 60928U);
  EXPECT_EQ(BytesPerToken("qwen3-0.6b", 0, Raw(Dtype::kBf16)), 114688U);
  EXPECT_EQ(BytesPerToken("llama3-8b", 0, Raw(Dtype::kBf16)), 131072U);
  EXPECT_EQ(BytesPerToken("llama3-8b", 1, MlxAffine(8, 128, 4, 64, Dtype::kF16)), 8 * (132 + 72));
}

TEST(SyntheticTest, UnknownNamesAreAnsweredWithTheChoices) {
  EXPECT_EQ(SyntheticConfig("llama3-70b", 1).status().message(),
            "synthetic: no geometry is named \"llama3-70b\"; choose llama3-8b or qwen3-0.6b");
  EXPECT_EQ(SyntheticConfig("llama3-8b", 1000).status().message(),
            "synthetic: 1000 layers, at most 256");
}

TEST(SyntheticTest, WeightsAreTheSameEveryTimeAndTheDigestKnowsTheGeometry) {
  const ModelConfig one = *SyntheticConfig("qwen3-0.6b", 1);
  const Weights first = SyntheticWeights(one);
  const Weights again = SyntheticWeights(one);
  EXPECT_TRUE(
      std::ranges::equal(first.layers[0].qkv->values.span(), again.layers[0].qkv->values.span()));
  EXPECT_EQ(SyntheticDigest(one), SyntheticDigest(one));
  EXPECT_NE(SyntheticDigest(one), SyntheticDigest(*SyntheticConfig("qwen3-0.6b", 2)));
  EXPECT_NE(SyntheticDigest(one), SyntheticDigest(*SyntheticConfig("llama3-8b", 1)));
}

// Different prompts must not look alike by accident: tokens, layers and answers differ.
TEST(SyntheticTest, TokensAndLayersDiffer) {
  const ModelConfig config = *SyntheticConfig("qwen3-0.6b", 2);
  const Weights weights = SyntheticWeights(config);
  std::vector<float> a(config.hidden_size);
  std::vector<float> b(config.hidden_size);
  weights.embed(1, a);
  weights.embed(1 + 4096, b);
  EXPECT_NE(a, b);
  EXPECT_NE(weights.layers[0].attention_norm, weights.layers[1].attention_norm);
}

TEST(SyntheticTest, AnswersDependOnThePromptAndRepeat) {
  const KvFormat format = MlxAffine(8, 64, Dtype::kF16);
  const ModelConfig config = *SyntheticConfig("qwen3-0.6b", 2);
  Rig rig(config, SyntheticWeights(config), format);
  const auto answer = [&](std::vector<uint32_t> tokens) {
    return Generate(rig.model, rig.cache.space, {.id = "", .tokens = std::move(tokens)},
                    {.max_tokens = 4})
        .value()
        .tokens;
  };
  const std::vector<uint32_t> first = answer({1, 2, 3});
  EXPECT_EQ(first.size(), 4U);
  EXPECT_EQ(answer({1, 2, 3}), first);
  EXPECT_NE(answer({3, 2, 1}), first);
}

}  // namespace
}  // namespace prefixd::worker
