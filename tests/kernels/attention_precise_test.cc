// The error that kPrecise promises, and what it may touch.
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/attention_checks.h"
#include "tests/kernels/dispatch_targets.h"
#include "tests/kernels/guarded_pages.h"

namespace prefixd::kernels {
namespace {

using quant::Dtype;
using quant::KvFormat;

KvFormat AffinePair(uint8_t key_bits, uint8_t value_bits) {
  return {quant::Tiled(quant::MlxAffineFormat(key_bits, 64, Dtype::kF16)),
          quant::Tiled(quant::MlxAffineFormat(value_bits, 64, Dtype::kF16))};
}

// Issue line: precise <= 0.1 % against exact attention on dequantized KV, normal data, 20 seeds.
TEST(AttentionPreciseTest, RelativeErrorStaysBelowATenthOfAPercentOver20Seeds) {
  const LayerShape shape{.kv_heads = 1, .key_dim = 128, .value_dim = 128};
  const KvFormat formats[] = {AffinePair(8, 8),
                              AffinePair(8, 4),
                              AffinePair(4, 4),
                              {quant::Tiled(quant::GgmlFormat(quant::Codec::kQ8_0)),
                               quant::Tiled(quant::GgmlFormat(quant::Codec::kQ4_0))}};
  for (const KvFormat& format : formats) {
    SCOPED_TRACE(quant::ToString(format));
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      const PagedLayer layer(shape, {format}, UniformBlocks(700, 64), seed);
      const AttentionShape attention = ShapeOf(shape, 4, 2, 698);
      const std::vector<float> q = RandomFloats(QueryFloats(attention), 1000 + seed);
      const std::vector<float> want = Expected(layer, q.data(), attention);
      ForEachTarget([&](const char*) {
        EXPECT_LE(RelativeRms(MustAttend(layer, q.data(), attention), want), 1e-3);
      });
    }
  }
}

// Attention of real models: the first token takes nearly all the weight and its value is nearly
// nothing; what the others add up to must not be rounded away.
TEST(AttentionPreciseTest, WeightsFarBelowTheLargestKeepTheirPrecision) {
  const LayerShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  for (const KvFormat& format : {AffinePair(8, 8), AffinePair(4, 4)}) {
    SCOPED_TRACE(quant::ToString(format));
    const PagedLayer layer(shape, {format}, UniformBlocks(640, 64));
    AttentionShape attention = ShapeOf(shape, 4, 1, 639);
    const std::vector<float> sinks(4, 12.0f);  // the others together: some percent
    attention.sink_logits = sinks.data();
    const std::vector<float> q = RandomFloats(QueryFloats(attention), 3);
    const std::vector<float> want = Expected(layer, q.data(), attention);
    ForEachTarget([&](const char*) {
      EXPECT_LE(RelativeRms(MustAttend(layer, q.data(), attention), want), 1e-3);
    });
  }
}

// Multi-head latent attention: one KV head of 576, of which 512 are values.
TEST(AttentionPreciseTest, WideHeadsOfLatentAttentionWork) {
  const LayerShape shape{.kv_heads = 1, .key_dim = 576, .value_dim = 512};
  for (const KvFormat& format :
       {AffinePair(8, 8), AffinePair(8, 4), AffinePair(4, 4),
        KvFormat{quant::RawFormat(Dtype::kBf16), quant::RawFormat(Dtype::kBf16)}}) {
    SCOPED_TRACE(quant::ToString(format));
    const PagedLayer layer(shape, {format}, UniformBlocks(150, 64));
    ExpectLikeScalarOnEveryTarget(layer, ShapeOf(shape, 16, 1, 149));
    ExpectLikeScalarOnEveryTarget(layer, ShapeOf(shape, 16, 20, 130));
  }
}

class AttentionGuardTest : public testing::TestWithParam<Guard> {};

void ExpectOnlyPagesAreRead(const LayerShape& shape, const KvFormat& format, uint32_t page_tokens,
                            Guard guard) {
  SCOPED_TRACE(quant::ToString(format) + ", " + std::to_string(page_tokens) + " slots, dim " +
               std::to_string(shape.key_dim));
  // The last page is not full, and cut ones end where their tokens end.
  const uint32_t tokens = 2 * page_tokens + (page_tokens + 1) / 2;
  const PagedLayer layer(shape, {format}, UniformBlocks(tokens, page_tokens));
  const GuardedPages guarded(layer, shape, guard);
  for (const uint32_t rows : {1u, std::min(tokens, 12u)}) {
    const AttentionShape attention = ShapeOf(shape, 2, rows, tokens - rows);
    const std::vector<float> q = RandomFloats(QueryFloats(attention), 5);
    const std::vector<float> want = Expected(layer, q.data(), attention);
    ForEachTarget([&](const char*) {
      std::vector<float> out(OutFloats(attention));
      ASSERT_TRUE(Attend(guarded.table(), layer.formats(), q.data(), out.data(), attention).ok());
      EXPECT_LE(RelativeError(out, want), kErrorBound);
    });
  }
}

// Unused slots hold NaN besides.
TEST_P(AttentionGuardTest, OnlyPagesAreReadWhateverTheFormatAndGeometry) {
  for (const uint32_t dim : {64u, 96u, 128u}) {
    const LayerShape shape{.kv_heads = 2, .key_dim = dim, .value_dim = dim};
    for (const quant::TensorFormat& format : FormatsFor(dim)) {
      if (format.dtype == Dtype::kBf16) continue;  // as wide as f16
      for (const quant::TensorFormat& laid : {format, quant::Tiled(format)}) {
        for (const uint32_t page_tokens : {1u, 17u, 64u}) {
          ExpectOnlyPagesAreRead(shape, {laid, laid}, page_tokens, GetParam());
        }
        if (!quant::HasTiled(format)) break;
      }
    }
  }
}
TEST_P(AttentionGuardTest, OnlyPagesAreReadOfEveryLength) {
  const LayerShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  for (uint32_t page_tokens = 1; page_tokens <= 128; ++page_tokens) {
    ExpectOnlyPagesAreRead(shape, AffinePair(8, 4), page_tokens, GetParam());
  }
}
INSTANTIATE_TEST_SUITE_P(Sides, AttentionGuardTest, testing::Values(Guard::kBefore, Guard::kBehind),
                         [](const auto& info) {
                           return info.param == Guard::kBefore ? "Before" : "Behind";
                         });

}  // namespace
}  // namespace prefixd::kernels
