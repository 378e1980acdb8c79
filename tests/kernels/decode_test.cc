// Mode fast against AttendScalar: formats, shapes, lengths round tiles and blocks, error bounds.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/attention.h"
#include "tests/kernels/attention_checks.h"
#include "tests/kernels/dispatch_targets.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::kernels {
namespace {

using quant::Codec;
using quant::Dtype;
using quant::KvFormat;
using quant::TensorFormat;

TensorFormat Affine(uint8_t bits, uint16_t group, Dtype dtype = Dtype::kF16) {
  return quant::Tiled(quant::MlxAffineFormat(bits, group, dtype));
}
TensorFormat Ggml(Codec codec) { return quant::Tiled(quant::GgmlFormat(codec)); }

AttentionShape FastShapeOf(const LayerShape& layer, uint32_t group, uint32_t rows, uint32_t first) {
  AttentionShape shape = ShapeOf(layer, group, rows, first);
  shape.mode = AttentionMode::kFast;
  return shape;
}

std::vector<float> QueriesFor(const AttentionShape& shape, uint32_t seed = 5) {
  return RandomFloats(size_t{shape.query_rows} * shape.query_heads * shape.key_dim, seed);
}

using Attention = absl::Status (*)(quant::BlockTable, std::span<const KvFormat>, const float*,
                                   float*, const AttentionShape&);
std::vector<float> ResultOf(Attention attention, const PagedLayer& layer,
                            const std::vector<float>& q, const AttentionShape& shape) {
  std::vector<float> out(size_t{shape.query_rows} * shape.query_heads * shape.value_dim, -77.0f);
  const absl::Status status =
      attention(layer.table(), layer.formats(), q.data(), out.data(), shape);
  EXPECT_TRUE(status.ok()) << std::string(status.message());
  return out;
}

double FastError(const PagedLayer& layer, const AttentionShape& shape, uint32_t seed = 5) {
  const std::vector<float> q = QueriesFor(shape, seed);
  return RelativeRms(ResultOf(&Attend, layer, q, shape), ResultOf(&AttendScalar, layer, q, shape));
}

// A few tokens have larger errors than many: rounding errors of single weights do not cancel.
constexpr double kCoarse = 0.03;  // 8 bits of q and weights
constexpr double kFine = 1e-3;    // 15 bits

std::vector<TensorFormat> TiledFormatsFor(uint32_t dim) {
  std::vector<TensorFormat> formats;
  for (const TensorFormat& format : FormatsFor(dim)) {
    if (quant::HasTiled(format)) formats.push_back(quant::Tiled(format));
  }
  return formats;
}

TEST(DecodeTest, EveryTiledFormatAgreesWithTheScalarOracleOnEveryTarget) {
  for (const uint32_t dim : {32u, 64u, 96u, 128u, 192u}) {
    for (const TensorFormat& format : TiledFormatsFor(dim)) {
      SCOPED_TRACE(quant::ToString(format) + " dim " + std::to_string(dim));
      const LayerShape layer_shape{.kv_heads = 2, .key_dim = dim, .value_dim = dim};
      const PagedLayer layer(layer_shape, {{format, format}}, UniformBlocks(100, 64));
      const double bound = format.bits == 8 ? kFine : kCoarse;
      ForEachTarget([&](const char*) {
        EXPECT_LE(FastError(layer, FastShapeOf(layer_shape, 4, 2, 98)), bound);
      });
    }
  }
}

TEST(DecodeTest, PagesInRowsGiveTheBitsOfTiledOnes) {
  for (const uint32_t dim : {64u, 96u, 128u, 256u}) {
    const LayerShape shape{.kv_heads = 2, .key_dim = dim, .value_dim = dim};
    for (const TensorFormat& tiled : TiledFormatsFor(dim)) {
      SCOPED_TRACE(quant::ToString(tiled) + " dim " + std::to_string(dim));
      const TensorFormat rows = quant::InRows(tiled);
      for (const uint32_t block : {64u, 128u, 37u}) {
        const AttentionShape attention = FastShapeOf(shape, 3, 3, 147);
        const std::vector<float> q = QueriesFor(attention);
        const auto result = [&](const KvFormat& format) {
          const PagedLayer layer(shape, {format}, UniformBlocks(150, block));
          return ResultOf(&Attend, layer, q, attention);
        };
        const std::vector<float> want = result({tiled, tiled});
        EXPECT_TRUE(SameBits(result({rows, rows}), want)) << "blocks of " << block;
        EXPECT_TRUE(SameBits(result({rows, tiled}), want)) << "blocks of " << block;
      }
    }
  }
}

TEST(DecodeTest, KeysAndValuesMayDifferInFormatGroupAndWidth) {
  const KvFormat formats[] = {{Affine(8, 64), Affine(4, 32, Dtype::kBf16)},
                              {Affine(4, 32, Dtype::kF32), Affine(8, 64)},
                              {Ggml(Codec::kQ8_0), Ggml(Codec::kQ4_0)},
                              {Ggml(Codec::kQ4_1), Ggml(Codec::kQ8_0)},
                              {Ggml(Codec::kQ4_0), Affine(4, 64)}};
  const LayerShape shapes[] = {{.kv_heads = 2, .key_dim = 192, .value_dim = 128},
                               {.kv_heads = 1, .key_dim = 576, .value_dim = 512},
                               {.kv_heads = 3, .key_dim = 64, .value_dim = 256}};
  for (const LayerShape& shape : shapes) {
    for (const KvFormat& format : formats) {
      SCOPED_TRACE(quant::ToString(format));
      const PagedLayer layer(shape, {format}, UniformBlocks(150, 64));
      EXPECT_LE(FastError(layer, FastShapeOf(shape, 4, 1, 149)), kCoarse);
    }
  }
}

TEST(DecodeTest, EveryNumberOfHeadsAndRowsAgrees) {
  const LayerShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  const PagedLayer layer(shape, {{Affine(8, 64), Affine(8, 32)}}, UniformBlocks(130, 64));
  for (const uint32_t group : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 16u}) {
    for (const uint32_t rows : {1u, 2u, 3u, 5u, 8u}) {
      SCOPED_TRACE(std::to_string(group) + " heads, " + std::to_string(rows) + " rows");
      EXPECT_LE(FastError(layer, FastShapeOf(shape, group, rows, 130 - rows)), kFine);
    }
  }
}

TEST(DecodeTest, EveryLengthRoundVectorsTilesAndBlocksAgrees) {
  const LayerShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  for (const uint32_t block : {1u, 7u, 16u, 17u, 32u, 33u, 48u, 64u, 65u, 100u, 128u}) {
    for (const uint32_t length : {1u, 2u, 15u, 16u, 17u, 33u, 48u, 63u, 64u, 65u, 130u, 257u}) {
      SCOPED_TRACE(std::to_string(length) + " tokens, blocks of " + std::to_string(block));
      const PagedLayer layer(shape, {{Affine(8, 64), Affine(8, 64)}}, UniformBlocks(length, block));
      EXPECT_LE(FastError(layer, FastShapeOf(shape, 4, 1, length - 1)), kFine);
      const uint32_t rows = std::min(length, 8u);
      EXPECT_LE(FastError(layer, FastShapeOf(shape, 2, rows, length - rows)), kFine);
    }
  }
}

TEST(DecodeTest, BlocksOfOneTableMayDifferInFormatAndGeometry) {
  const LayerShape shape{.kv_heads = 2, .key_dim = 128, .value_dim = 128};
  const PagedLayer layer(
      shape,
      {{Affine(8, 64), Affine(8, 128)},
       {Affine(8, 32), Affine(4, 64)},
       {Ggml(Codec::kQ4_0), Ggml(Codec::kQ4_1)}},
      {{64, 64, 1}, {17, 64, 0}, {0, 16, 2}, {30, 32, 2}, {9, 9, 1}, {64, 128, 0}});
  EXPECT_LE(FastError(layer, FastShapeOf(shape, 4, 3, 181)), kCoarse);
}

TEST(DecodeTest, PlainNumbersAgree) {
  for (const uint32_t dim : {16u, 64u, 80u, 128u, 576u}) {
    for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16, Dtype::kF32}) {
      SCOPED_TRACE(std::string(quant::ToString(dtype)) + " dim " + std::to_string(dim));
      const LayerShape shape{.kv_heads = 2, .key_dim = dim, .value_dim = dim};
      const TensorFormat format = quant::RawFormat(dtype);
      const PagedLayer layer(shape, {{format, format}}, UniformBlocks(201, 64));
      for (const uint32_t group : {1u, 3u, 4u, 6u}) {
        EXPECT_LE(FastError(layer, FastShapeOf(shape, group, 1, 200)), 2e-5);
        EXPECT_LE(FastError(layer, FastShapeOf(shape, group, 3, 190)), 2e-5);
      }
    }
  }
}

TEST(DecodeTest, PlainNumbersAndCodesMayBeMixed) {
  const LayerShape shape{.kv_heads = 2, .key_dim = 128, .value_dim = 64};
  const TensorFormat raw = quant::RawFormat(Dtype::kF16);
  const PagedLayer layer(shape, {{raw, raw}, {raw, Affine(8, 64)}, {Affine(8, 64), raw}},
                         {{64, 64, 0}, {64, 64, 1}, {30, 64, 2}});
  EXPECT_LE(FastError(layer, FastShapeOf(shape, 4, 2, 156)), kFine);
}

// Several slots, and slots that are used again: 40000 tokens are more than 16 runs of 2048.
TEST(DecodeTest, LongContextsAgree) {
  const LayerShape shape{.kv_heads = 1, .key_dim = 32, .value_dim = 32};
  const PagedLayer layer(shape, {{Affine(8, 32), Affine(8, 32)}}, UniformBlocks(40000, 128));
  EXPECT_LE(FastError(layer, FastShapeOf(shape, 2, 2, 39998)), kFine);
  EXPECT_LE(FastError(layer, FastShapeOf(shape, 2, 1, 4095)), kFine);
  EXPECT_LE(FastError(layer, FastShapeOf(shape, 2, 1, 2048)), kFine);
}

TEST(DecodeTest, TheLargestCodesTimesTheLargestFactorsDoNotOverflow) {
  for (const TensorFormat& format : TiledFormatsFor(128)) {
    for (const uint32_t stripe : {1u, 16u, 32u, 64u}) {
      SCOPED_TRACE(quant::ToString(format) + " in stripes of " + std::to_string(stripe));
      const LayerShape layer_shape{
          .kv_heads = 1, .key_dim = 128, .value_dim = 128, .stripe = stripe};
      const PagedLayer layer(layer_shape, {{format, format}}, UniformBlocks(128, 64));
      const AttentionShape shape = FastShapeOf(layer_shape, 4, 1, 127);
      for (const float x : {1.0f, -1.0f}) {  // all tokens have the same score
        const std::vector<float> q(size_t{shape.query_heads} * 128, x);
        const std::vector<float> want = ResultOf(&AttendScalar, layer, q, shape);
        ForEachTarget([&](const char*) {
          EXPECT_LE(RelativeRms(ResultOf(&Attend, layer, q, shape), want), kCoarse);
        });
      }
    }
  }
}

TEST(DecodeTest, LargeScoresNeitherOverflowNorLoseTheMaximum) {
  const LayerShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  const PagedLayer layer(shape, {{Affine(8, 64), Affine(8, 64)}}, UniformBlocks(3000, 64));
  AttentionShape attention = FastShapeOf(shape, 4, 2, 2998);
  attention.scale = 4;  // scores of a hundred: nearly one token takes all
  EXPECT_LE(FastError(layer, attention), 0.02);
}

// Far more than a float's exponent holds: weights may not stay relative to the first tile's scores.
TEST(DecodeTest, ScoresThatRiseByAThousandPowersOf2DoNotOverflow) {
  const LayerShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  const PagedLayer layer(shape, {{Affine(8, 64), Affine(8, 64)}}, UniformBlocks(3000, 64));
  AttentionShape attention = FastShapeOf(shape, 4, 2, 2998);
  attention.scale = 100;
  EXPECT_LE(FastError(layer, attention), 0.02);
}

// Issue line: fast <= 1.8 % relative RMS for K8/V4 over 20 seeds, normal data.
TEST(DecodeTest, ErrorOfEightBitKeysAndFourBitValuesIsBelow1Point8PercentOver20Seeds) {
  const LayerShape shape{.kv_heads = 2, .key_dim = 128, .value_dim = 128};
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    const PagedLayer layer(shape, {{Affine(8, 64), Affine(4, 64)}}, UniformBlocks(1024, 64), seed);
    EXPECT_LE(FastError(layer, FastShapeOf(shape, 4, 1, 1023), seed + 100), 0.018)
        << "seed " << seed;
  }
}

TEST(DecodeTest, ErrorOfEightBitKeysAndValuesIsBelow0Point05Percent) {
  const LayerShape shape{.kv_heads = 2, .key_dim = 128, .value_dim = 128};
  for (const TensorFormat& format : {Affine(8, 64), Ggml(Codec::kQ8_0)}) {
    for (uint32_t seed = 1; seed <= 5; ++seed) {
      const PagedLayer layer(shape, {{format, format}}, UniformBlocks(1024, 64), seed);
      EXPECT_LE(FastError(layer, FastShapeOf(shape, 4, 1, 1023), seed + 100), 5e-4)
          << "seed " << seed;
    }
  }
}

TEST(DecodeTest, ResultsAreTheSameOnAnyNumberOfThreads) {
  const LayerShape shape{.kv_heads = 3, .key_dim = 64, .value_dim = 96};
  const PagedLayer layer(shape, {{Affine(8, 64), Affine(4, 32)}}, UniformBlocks(9000, 64));
  AttentionShape attention = FastShapeOf(shape, 4, 3, 8997);
  const std::vector<float> q = QueriesFor(attention);
  const std::vector<float> one = ResultOf(&Attend, layer, q, attention);
  for (const uint32_t threads : {2u, 3u, 4u, 9u}) {
    attention.threads = threads;
    EXPECT_TRUE(SameBits(ResultOf(&Attend, layer, q, attention), one)) << threads << " threads";
  }
}

TEST(DecodeTest, StridesOfQueryAndResultDoNotMatter) {
  const LayerShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 96};
  const PagedLayer layer(shape, {{Affine(8, 64), Affine(4, 32)}}, UniformBlocks(80, 64));
  const AttentionShape dense = FastShapeOf(shape, 2, 3, 77);
  const std::vector<float> q = QueriesFor(dense);
  const std::vector<float> want = ResultOf(&Attend, layer, q, dense);
  AttentionShape strided = dense;  // heads outside rows, gaps between
  strided.query_row_stride = 67;
  strided.query_head_stride = 3 * 67;
  strided.out_row_stride = 99;
  strided.out_head_stride = 3 * 99;
  std::vector<float> strided_q(4 * 3 * 67), out(4 * 3 * 99, -77.0f);
  for (size_t row = 0; row < 3; ++row) {
    for (size_t head = 0; head < 4; ++head) {
      std::memcpy(&strided_q[row * 67 + head * 3 * 67], &q[(row * 4 + head) * 64],
                  64 * sizeof(float));
    }
  }
  ASSERT_TRUE(Attend(layer.table(), layer.formats(), strided_q.data(), out.data(), strided).ok());
  for (size_t row = 0; row < 3; ++row) {
    for (size_t head = 0; head < 4; ++head) {
      const float* got = &out[row * 99 + head * 3 * 99];
      EXPECT_EQ(std::memcmp(got, &want[(row * 4 + head) * 96], 96 * sizeof(float)), 0);
      EXPECT_EQ(got[96], -77.0f) << "wrote behind a row";
    }
  }
}

TEST(DecodeTest, NanInLaterTokensReachesOnlyRowsThatSeeIt) {
  for (const TensorFormat& format :
       {Affine(8, 32), Affine(4, 32, Dtype::kF32), quant::RawFormat(Dtype::kF16)}) {
    SCOPED_TRACE(quant::ToString(format));
    const LayerShape shape{.kv_heads = 1, .key_dim = 32, .value_dim = 32};
    const PagedLayer layer(shape, {{format, format}}, UniformBlocks(40, 64));
    // The same bytes, with slots that hold NaN counted as tokens.
    quant::BlockTableEntry entry = layer.table()[0];
    entry.tokens = 64;
    const AttentionShape attention = FastShapeOf(shape, 2, 8, 36);
    const std::vector<float> q = QueriesFor(attention);
    std::vector<float> out(8 * 2 * 32);
    ASSERT_TRUE(
        Attend(std::span(&entry, 1), layer.formats(), q.data(), out.data(), attention).ok());
    const std::vector<float> clean =
        ResultOf(&AttendScalar, layer, q, FastShapeOf(shape, 2, 4, 36));
    EXPECT_TRUE(std::isnan(out.back())) << "a row that sees NaN";
    out.resize(clean.size());
    EXPECT_LE(RelativeRms(out, clean), kCoarse);
  }
}

}  // namespace
}  // namespace prefixd::kernels
