// Mode fast prefill: queries and weights of 8 bits against the scalar oracle, and bits against
// bits.
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/prefill/attend_slice.h"
#include "kernels/prefill/matrix_tiles.h"
#include "tests/kernels/attention_checks.h"
#include "tests/kernels/attention_option.h"
#include "tests/kernels/dispatch_targets.h"
#include "tests/kernels/guarded_pages.h"

namespace prefixd::kernels {
namespace {

using options::kLayer;
using options::Option;
using quant::Codec;
using quant::Dtype;
using quant::KvFormat;
using quant::TensorFormat;

TensorFormat Affine(uint8_t bits, uint16_t group, Dtype dtype = Dtype::kF16) {
  return quant::MlxAffineFormat(bits, group, dtype);
}
KvFormat TiledPair(const KvFormat& format) {
  return {quant::Tiled(format.key), quant::Tiled(format.value)};
}

AttentionShape Fast(AttentionShape shape) {
  shape.mode = AttentionMode::kFastPrefill;
  return shape;
}
std::vector<float> QueriesFor(const AttentionShape& shape, uint32_t seed = 5) {
  return RandomFloats(QueryFloats(shape), seed);
}
double FastError(const PagedLayer& layer, const AttentionShape& shape, uint32_t seed = 5) {
  const std::vector<float> q = QueriesFor(shape, seed);
  return RelativeRms(MustAttend(layer, q.data(), Fast(shape)), Expected(layer, q.data(), shape));
}

// Issue line: fast <= 1.8 % relative RMS over 20 seeds.
TEST(PrefillFastTest, RelativeErrorStaysBelow1Point8PercentOver20Seeds) {
  const LayerShape shape{.kv_heads = 1, .key_dim = 128, .value_dim = 128};
  const KvFormat formats[] = {{Affine(8, 64), Affine(8, 64)},
                              {Affine(8, 64), Affine(4, 64)},
                              {Affine(4, 64), Affine(4, 64)},
                              {quant::GgmlFormat(Codec::kQ8_0), quant::GgmlFormat(Codec::kQ4_0)}};
  for (const KvFormat& format : formats) {
    SCOPED_TRACE(quant::ToString(format));
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      const PagedLayer layer(shape, {TiledPair(format)}, UniformBlocks(700, 64), seed);
      EXPECT_LE(FastError(layer, ShapeOf(shape, 4, 20, 680), 1000 + seed), 0.018);
    }
  }
}

// An error above that of kPrecise says that this is another arithmetic.
TEST(PrefillFastTest, EightBitsOfQueriesAndWeightsAreWhatIsMultiplied) {
  const LayerShape shape{.kv_heads = 1, .key_dim = 128, .value_dim = 128};
  const PagedLayer layer(shape, {{Affine(8, 64), Affine(8, 64)}}, UniformBlocks(300, 64));
  ForEachTarget([&](const char*) {
    const double error = FastError(layer, ShapeOf(shape, 2, 20, 280));
    if (MultipliesCodes()) {
      EXPECT_GT(error, 2e-3);
    } else {
      EXPECT_LE(error, 1e-3) << "it has no faster arithmetic";
    }
  });
}

// A few tokens have larger errors than many: rounding errors of single weights do not cancel.
constexpr double kFewTokens = 0.03;

TEST(PrefillFastTest, EveryFormatAgreesWithTheScalarOracleInRowsAndTiled) {
  for (const uint32_t dim : {32u, 64u, 80u, 96u, 128u, 256u}) {
    const LayerShape shape{.kv_heads = 2, .key_dim = dim, .value_dim = dim};
    const AttentionShape attention = ShapeOf(shape, 3, 30, 120);
    const std::vector<float> q = QueriesFor(attention);
    for (const TensorFormat& format : FormatsFor(dim)) {
      SCOPED_TRACE(quant::ToString(format) + " dim " + std::to_string(dim));
      const PagedLayer rows(shape, {{format, format}}, UniformBlocks(150, 64));
      const std::vector<float> want = Expected(rows, q.data(), attention);
      ForEachQuickTarget([&](const char*) {
        const std::vector<float> got = MustAttend(rows, q.data(), Fast(attention));
        EXPECT_LE(RelativeRms(got, want), kFewTokens);
        if (!quant::HasTiled(format)) return;
        const PagedLayer tiled(shape, {TiledPair({format, format})}, UniformBlocks(150, 64));
        EXPECT_TRUE(SameBits(MustAttend(tiled, q.data(), Fast(attention)), got));
      });
    }
  }
}

TEST(PrefillFastTest, EveryGeometryGivesTheBitsOfRows) {
  const LayerShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 128};
  const KvFormat formats[] = {{Affine(8, 64), Affine(4, 32)},
                              {Affine(4, 32, Dtype::kBf16), Affine(8, 128)},
                              {quant::GgmlFormat(Codec::kQ8_0), quant::GgmlFormat(Codec::kQ4_1)},
                              {quant::GgmlFormat(Codec::kQ4_0), quant::GgmlFormat(Codec::kQ8_0)}};
  const std::vector<std::vector<BlockShape>> geometries = {
      UniformBlocks(260, 128), UniformBlocks(260, 16),
      UniformBlocks(260, 37),  {{64, 64}, {32, 32}, {164, 192}},
      UniformBlocks(260, 1),   {{64, 128}, {128, 200}, {48, 48}, {20, 256}}};
  AttentionShape attention = ShapeOf(shape, 2, 20, 240);
  attention.window = 177;
  attention.sink_tokens = 5;
  const std::vector<float> q = QueriesFor(attention);
  for (const KvFormat& format : formats) {
    const PagedLayer rows(shape, {format}, UniformBlocks(260, 64));
    const std::vector<float> want = MustAttend(rows, q.data(), Fast(attention));
    for (const std::vector<BlockShape>& blocks : geometries) {
      SCOPED_TRACE(quant::ToString(format) + ", " + std::to_string(blocks.size()) + " blocks");
      const PagedLayer tiled(shape, {TiledPair(format)}, blocks);
      EXPECT_TRUE(SameBits(MustAttend(tiled, q.data(), Fast(attention)), want));
    }
  }
}

const std::vector<Option>& PrefillOptions() {
  static const std::vector<Option> options = {
      {.name = "nothing"},
      {.name = "window 100 after 4 tokens", .window = 100, .sink_tokens = 4},
      {.name = "learned sinks", .sinks = true},
      {.name = "soft cap 2", .soft_cap = 2, .scale = 0.2f},
      {.name = "scale below 0", .scale = -0.1f},
      {.name = "everything", .window = 70, .sink_tokens = 3, .soft_cap = 5, .sinks = true}};
  return options;
}
// The second is partly raw: each arithmetic takes its own tokens.
std::vector<std::vector<KvFormat>> Tables() {
  const KvFormat codes{Affine(8, 64), Affine(4, 32, Dtype::kBf16)};
  return {{codes}, {codes, {quant::RawFormat(Dtype::kF16), quant::RawFormat(Dtype::kF16)}}};
}
std::vector<BlockShape> BlocksFor(const std::vector<KvFormat>& formats) {
  if (formats.size() == 1) return UniformBlocks(250, 64);
  return {{30, 64, 1}, {64, 64, 0}, {34, 64, 1}, {70, 128, 0}, {52, 64, 1}};
}

TEST(PrefillFastTest, EveryOptionAgreesWithTheScalarOracle) {
  for (const std::vector<KvFormat>& formats : Tables()) {
    const PagedLayer layer(kLayer, formats, BlocksFor(formats));
    for (const Option& option : PrefillOptions()) {
      SCOPED_TRACE(option.name);
      EXPECT_LE(FastError(layer, option.Of(90, 160)), kFewTokens);
      EXPECT_LE(FastError(layer, option.Of(250, 0)), kFewTokens);
    }
  }
}

TEST(PrefillFastTest, ARowIsTheSameAloneInAChunkAndOnThreads) {
  constexpr uint32_t kRows = 100, kFirst = 150;
  for (const std::vector<KvFormat>& formats : Tables()) {
    const PagedLayer layer(kLayer, formats, BlocksFor(formats));
    for (const Option& option : PrefillOptions()) {
      SCOPED_TRACE(option.name);
      const AttentionShape all = Fast(option.Of(kRows, kFirst));
      const std::vector<float> q = QueriesFor(all);
      const std::vector<float> together = MustAttend(layer, q.data(), all);
      AttentionShape threaded = all;
      threaded.threads = 3;
      EXPECT_TRUE(SameBits(MustAttend(layer, q.data(), threaded), together)) << "threads";
      const size_t row_floats = together.size() / kRows;
      for (const uint32_t first : {0u, 1u, 41u, 42u, kRows - 1}) {
        for (const uint32_t rows : {1u, kRows - first}) {
          const AttentionShape some = Fast(option.Of(rows, kFirst + first));
          const size_t query_floats = QueryFloats(some) / rows;
          const auto begin = together.begin() + static_cast<ptrdiff_t>(first * row_floats);
          EXPECT_TRUE(SameBits(MustAttend(layer, q.data() + first * query_floats, some),
                               {begin, begin + static_cast<ptrdiff_t>(rows * row_floats)}))
              << rows << " rows from " << first;
        }
      }
    }
  }
}

// More rows than are decoded.
TEST(PrefillFastTest, ModeFastIsFastPrefillWhereItCannotDecode) {
  const PagedLayer layer(kLayer, Tables()[0], UniformBlocks(250, 64));
  const AttentionShape rows = Fast(Option{}.Of(20, 230));
  AttentionShape mode_fast = rows;
  mode_fast.mode = AttentionMode::kFast;
  const std::vector<float> q = QueriesFor(rows);
  EXPECT_TRUE(SameBits(MustAttend(layer, q.data(), mode_fast), MustAttend(layer, q.data(), rows)));
}

TEST(PrefillFastTest, TileRegistersChangeNoBit) {
  if (!HaveMatrixTiles()) GTEST_SKIP() << "this machine has none";
  for (const uint32_t key_dim : {64u, 128u, 192u}) {
    for (const TensorFormat& format : FormatsFor(key_dim)) {
      SCOPED_TRACE(quant::ToString(format) + " key dim " + std::to_string(key_dim));
      const LayerShape shape{.kv_heads = 2, .key_dim = key_dim, .value_dim = 96};
      const PagedLayer layer(shape, {{format, Affine(6, 32)}}, UniformBlocks(300, 64));
      const AttentionShape attention = Fast(ShapeOf(shape, 3, 71, 229));  // no whole last strip
      const std::vector<float> q = QueriesFor(attention);
      const std::vector<float> tiles = MustAttend(layer, q.data(), attention);
      AllowMatrixTiles(false);
      EXPECT_TRUE(SameBits(MustAttend(layer, q.data(), attention), tiles));
      AllowMatrixTiles(true);
    }
  }
}

// Unused slots hold NaN: with them counted, rows before them are as if they were not there.
TEST(PrefillFastTest, NanInLaterTokensReachesOnlyRowsThatSeeIt) {
  const LayerShape shape{.kv_heads = 1, .key_dim = 32, .value_dim = 32};
  for (const uint8_t bits : {uint8_t{8}, uint8_t{4}}) {
    const PagedLayer layer(shape, {{Affine(bits, 32), Affine(bits, 32)}}, UniformBlocks(40, 64));
    quant::BlockTableEntry entry = layer.table()[0];
    entry.tokens = 64;
    const AttentionShape all = Fast(ShapeOf(shape, 4, 64, 0));
    const std::vector<float> q = QueriesFor(all);
    const std::vector<float> clean = MustAttend(layer, q.data(), Fast(ShapeOf(shape, 4, 40, 0)));
    std::vector<float> out(OutFloats(all));
    ASSERT_TRUE(Attend(std::span(&entry, 1), layer.formats(), q.data(), out.data(), all).ok());
    EXPECT_TRUE(std::isnan(out.back())) << "a row that sees NaN";
    out.resize(clean.size());
    EXPECT_TRUE(SameBits(out, clean));
  }
}

TEST(PrefillFastTest, OnlyPagesAreRead) {
  for (const Guard guard : {Guard::kBefore, Guard::kBehind}) {
    for (const uint32_t page_tokens : {1u, 17u, 31u, 64u, 127u, 128u}) {
      for (const KvFormat& format :
           {KvFormat{Affine(8, 64), Affine(8, 64)}, KvFormat{Affine(8, 64), Affine(4, 64)},
            TiledPair({Affine(8, 64), Affine(8, 64)}), TiledPair({Affine(4, 64), Affine(4, 64)})}) {
        SCOPED_TRACE(quant::ToString(format) + ", " + std::to_string(page_tokens) + " slots");
        const LayerShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
        const uint32_t tokens = 12 + 2 * page_tokens + (page_tokens + 1) / 2;
        const PagedLayer layer(shape, {format}, UniformBlocks(tokens, page_tokens));
        const GuardedPages guarded(layer, shape, guard);
        const AttentionShape attention = Fast(ShapeOf(shape, 2, 12, tokens - 12));
        const std::vector<float> q = QueriesFor(attention);
        std::vector<float> out(OutFloats(attention));
        ASSERT_TRUE(Attend(guarded.table(), layer.formats(), q.data(), out.data(), attention).ok());
        EXPECT_TRUE(SameBits(out, MustAttend(layer, q.data(), attention)));
      }
    }
  }
}

}  // namespace
}  // namespace prefixd::kernels
