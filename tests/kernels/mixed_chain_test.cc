// A sequence whose blocks are stored in several formats is no worse than its worst part.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/kernels/attention_checks.h"

namespace prefixd::kernels {
namespace {

using quant::Dtype;
using quant::KvFormat;

// S2-07, S0-03
TEST(MixedChainTest, RawEightAndFourBitBlocksDecodeWithinTheBoundOfTheWorst) {
  const LayerShape shape{.kv_heads = 2, .key_dim = 128, .value_dim = 128};
  const quant::TensorFormat raw = quant::RawFormat(Dtype::kF16);
  const quant::TensorFormat eight = quant::MlxAffineFormat(8, 64, Dtype::kF16);
  const quant::TensorFormat four = quant::MlxAffineFormat(4, 64, Dtype::kF16);
  const std::vector<KvFormat> formats = {{raw, raw}, {eight, eight}, {four, four}};
  constexpr uint32_t kTokens = 600;
  const AttentionShape attention = ShapeOf(shape, 4, 1, kTokens - 1);
  std::vector<double> mixed_errors, worst_errors;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    const std::vector<float> q = RandomFloats(QueryFloats(attention), 1000 + seed);
    const auto result = [&](const std::vector<BlockShape>& blocks) {
      return MustAttend(PagedLayer(shape, formats, blocks, seed), q.data(), attention);
    };
    const std::vector<float> want = result(UniformBlocks(kTokens, 64, 0));
    std::vector<BlockShape> mixed = UniformBlocks(kTokens, 64, 0);
    for (size_t i = 0; i < mixed.size(); ++i) mixed[i].format = static_cast<uint32_t>(i % 3);
    mixed_errors.push_back(RelativeRms(result(mixed), want));
    worst_errors.push_back(RelativeRms(result(UniformBlocks(kTokens, 64, 2)), want));
    EXPECT_GT(mixed_errors.back(), 0) << "the coarse blocks are used";
  }
  const double worst = *std::max_element(worst_errors.begin(), worst_errors.end());
  for (const double error : mixed_errors) EXPECT_LE(error, worst);
}

}  // namespace
}  // namespace prefixd::kernels
