// Attend against AttendScalar: every target, format, length round the vector width and block
// border.
#include "kernels/attention.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/prefill/matrix_tiles.h"
#include "tests/kernels/attention_checks.h"
#include "tests/kernels/dispatch_targets.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::kernels {
namespace {

using quant::Dtype;
using quant::KvFormat;

TEST(AttentionTest, EveryFormatAgreesWithTheScalarOracleOnEveryTarget) {
  for (const uint32_t dim : {32u, 64u, 80u, 96u, 128u, 256u}) {
    for (const quant::TensorFormat& format : FormatsFor(dim)) {
      SCOPED_TRACE(quant::ToString(format) + " dim " + std::to_string(dim));
      const LayerShape shape{.kv_heads = 2, .key_dim = dim, .value_dim = dim};
      const PagedLayer layer(shape, {{format, format}}, UniformBlocks(70, 32));
      ExpectLikeScalarOnEveryTarget(layer, ShapeOf(shape, 3, 3, 66));
    }
  }
}

TEST(AttentionTest, EveryLengthRoundTheVectorWidthAndBlockBorderAgrees) {
  const LayerShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  const quant::TensorFormat format = quant::MlxAffineFormat(4, 32, Dtype::kF16);
  for (const uint32_t length : {1u, 2u, 15u, 16u, 17u, 31u, 63u, 64u, 65u, 130u, 300u}) {
    SCOPED_TRACE(length);
    const PagedLayer layer(shape, {{format, format}}, UniformBlocks(length, 64));
    ExpectLikeScalarOnEveryTarget(layer, ShapeOf(shape, 4, 1, length - 1));
    ExpectLikeScalarOnEveryTarget(layer, ShapeOf(shape, 4, length, 0));
  }
}

TEST(AttentionTest, KeysAndValuesMayDifferInFormatAndWidth) {
  const KvFormat formats[] = {
      {quant::MlxAffineFormat(8, 64, Dtype::kBf16), quant::MlxAffineFormat(4, 32, Dtype::kF16)},
      {quant::GgmlFormat(quant::Codec::kQ8_0), quant::RawFormat(Dtype::kF16)},
      {quant::RawFormat(Dtype::kBf16), quant::GgmlFormat(quant::Codec::kQ5_1)}};
  const LayerShape shapes[] = {{.kv_heads = 2, .key_dim = 192, .value_dim = 128},
                               {.kv_heads = 3, .key_dim = 64, .value_dim = 256}};
  for (const LayerShape& shape : shapes) {
    for (const KvFormat& format : formats) {
      SCOPED_TRACE(quant::ToString(format));
      const PagedLayer layer(shape, {format}, UniformBlocks(150, 64));
      ExpectLikeScalarOnEveryTarget(layer, ShapeOf(shape, 2, 20, 130));
    }
  }
}

TEST(AttentionTest, RawRowsOfAnyWidthAgree) {
  for (const uint32_t dim : {1u, 3u, 7u, 33u, 80u, 112u}) {
    SCOPED_TRACE(dim);
    const LayerShape shape{.kv_heads = 1, .key_dim = dim, .value_dim = dim + 2};
    const PagedLayer layer(shape, {{quant::RawFormat(Dtype::kF16), quant::RawFormat(Dtype::kBf16)}},
                           UniformBlocks(70, 16));
    ExpectLikeScalarOnEveryTarget(layer, ShapeOf(shape, 1, 5, 65));
  }
}

TEST(AttentionTest, BlocksOfOneTableMayDifferInFormatAndGeometry) {
  const LayerShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  const PagedLayer layer(
      shape,
      {{quant::RawFormat(Dtype::kF32), quant::RawFormat(Dtype::kF32)},
       {quant::MlxAffineFormat(8, 64, Dtype::kF32), quant::MlxAffineFormat(3, 64, Dtype::kF32)},
       {quant::GgmlFormat(quant::Codec::kQ4_0), quant::GgmlFormat(quant::Codec::kQ4_1)}},
      {{64, 64, 1}, {17, 64, 0}, {0, 16, 2}, {30, 32, 2}, {9, 9, 1}, {64, 128, 0}});
  ExpectLikeScalarOnEveryTarget(layer, ShapeOf(shape, 4, 40, 130));
}

TEST(AttentionTest, LargeScoresNeitherOverflowNorLoseTheMaximum) {
  const LayerShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  const PagedLayer layer(shape, {{quant::RawFormat(Dtype::kF32), quant::RawFormat(Dtype::kF32)}},
                         UniformBlocks(200, 64));
  AttentionShape attention = ShapeOf(shape, 2, 2, 198);
  attention.scale = 4;  // scores of a few hundred: nearly one token takes all
  const std::vector<float> q = RandomFloats(QueryFloats(attention), 5);
  const std::vector<float> want = Expected(layer, q.data(), attention);
  ForEachTarget([&](const char*) {
    EXPECT_LE(RelativeError(MustAttend(layer, q.data(), attention), want), 1e-3);
  });
}

TEST(AttentionTest, StridesAndMisalignmentOfQueryAndResultDoNotMatter) {
  const LayerShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 96};
  const PagedLayer layer(shape, {{quant::RawFormat(Dtype::kF16), quant::RawFormat(Dtype::kF16)}},
                         UniformBlocks(80, 64));
  AttentionShape dense = ShapeOf(shape, 2, 7, 70);
  const std::vector<float> q = RandomFloats(QueryFloats(dense), 5);
  const std::vector<float> want = MustAttend(layer, q.data(), dense);
  AttentionShape strided = dense;  // heads outside rows, gaps between
  strided.query_row_stride = 67;
  strided.query_head_stride = 7 * 67;
  strided.out_row_stride = 99;
  strided.out_head_stride = 7 * 99;
  std::vector<float> strided_q(4 * 7 * 67 + 1);
  std::vector<float> strided_out(4 * 7 * 99 + 1, -77.0f);
  for (size_t row = 0; row < 7; ++row) {
    for (size_t head = 0; head < 4; ++head) {
      std::memcpy(&strided_q[1 + row * 67 + head * 7 * 67], &q[(row * 4 + head) * 64],
                  64 * sizeof(float));
    }
  }
  ASSERT_TRUE(
      Attend(layer.table(), layer.formats(), strided_q.data() + 1, strided_out.data() + 1, strided)
          .ok());
  for (size_t row = 0; row < 7; ++row) {
    for (size_t head = 0; head < 4; ++head) {
      const float* got = &strided_out[1 + row * 99 + head * 7 * 99];
      EXPECT_EQ(std::memcmp(got, &want[(row * 4 + head) * 96], 96 * sizeof(float)), 0);
      EXPECT_EQ(got[96], -77.0f) << "wrote behind a row";
    }
  }
}

// The promise behind "a hit equals the cold run bit for bit".
class SameBitsTest : public testing::Test {
 protected:
  static constexpr uint32_t kRows = 64;
  static constexpr uint32_t kFirst = 137;  // no multiple of anything
  const LayerShape shape_{.kv_heads = 2, .key_dim = 64, .value_dim = 96};
  const KvFormat format_{quant::MlxAffineFormat(8, 64, Dtype::kF16),
                         quant::MlxAffineFormat(5, 32, Dtype::kBf16)};
  const PagedLayer layer_{shape_, {format_}, UniformBlocks(kFirst + kRows, 64)};
  const AttentionShape all_ = ShapeOf(shape_, 3, kRows, kFirst);
  const std::vector<float> q_ = RandomFloats(QueryFloats(all_), 5);

  // Rows [first, first + rows) asked for alone.
  std::vector<float> Rows(const PagedLayer& layer, uint32_t first, uint32_t rows) const {
    const AttentionShape some = ShapeOf(shape_, 3, rows, kFirst + first);
    return MustAttend(layer, q_.data() + size_t{first} * some.query_heads * some.key_dim, some);
  }
  static std::vector<float> Slice(const std::vector<float>& all, uint32_t first, uint32_t rows) {
    const size_t row = all.size() / kRows;
    return {all.begin() + static_cast<ptrdiff_t>(first * row),
            all.begin() + static_cast<ptrdiff_t>((first + rows) * row)};
  }
};

TEST_F(SameBitsTest, ARowIsTheSameAloneInAChunkAndInASuffix) {
  ForEachTarget([&](const char*) {
    const std::vector<float> all = MustAttend(layer_, q_.data(), all_);
    for (uint32_t row = 0; row < kRows; ++row) {
      EXPECT_TRUE(SameBits(Rows(layer_, row, 1), Slice(all, row, 1))) << "row " << row;
    }
    for (const uint32_t first : {1u, 7u, 31u, 50u, 61u}) {
      EXPECT_TRUE(SameBits(Rows(layer_, first, kRows - first), Slice(all, first, kRows - first)))
          << "suffix from " << first;
      EXPECT_TRUE(SameBits(Rows(layer_, 0, first), Slice(all, 0, first))) << "prefix of " << first;
    }
  });
}

TEST_F(SameBitsTest, ARowIsTheSameOnAnyNumberOfThreads) {
  const LayerShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 96};
  const PagedLayer layer(shape, {format_}, UniformBlocks(700, 64));
  AttentionShape attention = ShapeOf(shape, 4, 300, 400);  // enough work to be split
  const std::vector<float> q = RandomFloats(QueryFloats(attention), 5);
  ForEachTarget([&](const char*) {
    const std::vector<float> one = MustAttend(layer, q.data(), attention);
    for (const uint32_t threads : {2u, 3u, 4u, 9u}) {
      AttentionShape threaded = attention;
      threaded.threads = threads;
      EXPECT_TRUE(SameBits(MustAttend(layer, q.data(), threaded), one)) << threads << " threads";
    }
  });
}

TEST_F(SameBitsTest, CutPagesAndOtherBlocksGiveTheSame) {
  const uint32_t tokens = kFirst + kRows;
  const std::vector<BlockShape> cut = {{64, 64}, {64, 64}, {64, 64}, {9, 9}};
  const std::vector<BlockShape> roomy = {{64, 128}, {64, 65}, {64, 64}, {9, 33}};
  ForEachTarget([&](const char*) {
    const std::vector<float> all = MustAttend(layer_, q_.data(), all_);
    for (const std::vector<BlockShape>& blocks :
         {cut, roomy, UniformBlocks(tokens, 16), UniformBlocks(tokens, 128),
          UniformBlocks(tokens, 37)}) {
      const PagedLayer other(shape_, {format_}, blocks);
      EXPECT_TRUE(SameBits(MustAttend(other, q_.data(), all_), all)) << blocks.size() << " blocks";
    }
  });
}

TEST_F(SameBitsTest, LaterTokensChangeNothing) {
  ForEachTarget([&](const char*) {
    const std::vector<float> all = MustAttend(layer_, q_.data(), all_);
    for (const uint32_t row : {0u, 20u, 62u}) {
      const PagedLayer shorter(shape_, {format_}, UniformBlocks(kFirst + row + 1, 64));
      EXPECT_TRUE(SameBits(Rows(shorter, row, 1), Slice(all, row, 1))) << "row " << row;
    }
  });
}

TEST(AttentionTest, TileRegistersChangeNoBit) {
  if (!HaveMatrixTiles()) GTEST_SKIP() << "this machine has none";
  for (const uint32_t key_dim : {64u, 128u, 192u}) {
    for (const quant::TensorFormat& format : FormatsFor(key_dim)) {
      SCOPED_TRACE(quant::ToString(format) + " key dim " + std::to_string(key_dim));
      const LayerShape shape{.kv_heads = 2, .key_dim = key_dim, .value_dim = 96};
      const PagedLayer layer(shape, {{format, quant::MlxAffineFormat(6, 32, Dtype::kBf16)}},
                             UniformBlocks(300, 64));
      const AttentionShape attention = ShapeOf(shape, 3, 71, 229);  // the last strip is not full
      const std::vector<float> q = RandomFloats(QueryFloats(attention), 5);
      const std::vector<float> tiles = MustAttend(layer, q.data(), attention);
      EXPECT_LE(RelativeError(tiles, Expected(layer, q.data(), attention)), kErrorBound);
      AllowMatrixTiles(false);
      EXPECT_TRUE(SameBits(MustAttend(layer, q.data(), attention), tiles));
      AllowMatrixTiles(true);
    }
  }
}

TEST(AttentionTest, SlicesWithAndWithoutTileRegistersShareTheirScratch) {
  const quant::TensorFormat format = quant::MlxAffineFormat(8, 32, Dtype::kF16);
  const LayerShape shape{.kv_heads = 3, .key_dim = 256, .value_dim = 256};
  const PagedLayer layer(shape, {{format, format}}, UniformBlocks(140, 64));
  ExpectLikeScalarOnEveryTarget(layer, ShapeOf(shape, 2, 67, 73));  // 64 rows, then 3
}

void ExpectNanBehindARowDoesNotReachIt(const quant::TensorFormat& format) {
  SCOPED_TRACE(quant::ToString(format));
  const LayerShape shape{.kv_heads = 1, .key_dim = 32, .value_dim = 32};
  const PagedLayer layer(shape, {{format, format}}, UniformBlocks(40, 64));
  // The same bytes, with slots that hold NaN counted as tokens.
  quant::BlockTableEntry entry = layer.table()[0];
  entry.tokens = 64;
  const AttentionShape attention = ShapeOf(shape, 4, 64, 0);
  const std::vector<float> q = RandomFloats(QueryFloats(attention), 5);
  const AttentionShape clean_rows = ShapeOf(shape, 4, 40, 0);
  ForEachTarget([&](const char*) {
    const std::vector<float> clean = MustAttend(layer, q.data(), clean_rows);
    std::vector<float> out(OutFloats(attention));
    ASSERT_TRUE(
        Attend(std::span(&entry, 1), layer.formats(), q.data(), out.data(), attention).ok());
    EXPECT_TRUE(std::isnan(out.back())) << "a row that sees NaN";
    out.resize(clean.size());
    EXPECT_TRUE(SameBits(out, clean));
  });
}

TEST(AttentionTest, NanInLaterTokensDoesNotReachEarlierRows) {
  ExpectNanBehindARowDoesNotReachIt(quant::RawFormat(Dtype::kF32));
  ExpectNanBehindARowDoesNotReachIt(quant::MlxAffineFormat(8, 32, Dtype::kF32));
  ExpectNanBehindARowDoesNotReachIt(quant::MlxAffineFormat(4, 32, Dtype::kF16));
}

}  // namespace
}  // namespace prefixd::kernels
