// Tiled pages: the same bits as rows, in both arithmetics.
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/attention_checks.h"
#include "tests/kernels/dispatch_targets.h"

namespace prefixd::kernels {
namespace {

using quant::Dtype;
using quant::KvFormat;

KvFormat TiledPair(const KvFormat& format) {
  return {quant::Tiled(format.key), quant::Tiled(format.value)};
}

void ExpectTiledLikeRows(const LayerShape& shape, const std::vector<KvFormat>& formats,
                         const std::vector<BlockShape>& blocks, const AttentionShape& attention) {
  std::vector<KvFormat> tiled_formats;
  for (const KvFormat& format : formats) tiled_formats.push_back(TiledPair(format));
  const PagedLayer rows(shape, formats, blocks);
  const PagedLayer tiled(shape, tiled_formats, blocks);
  const std::vector<float> q = RandomFloats(QueryFloats(attention), 5);
  const std::vector<float> want = Expected(rows, q.data(), attention);
  ForEachQuickTarget([&](const char*) {
    const std::vector<float> got = MustAttend(tiled, q.data(), attention);
    EXPECT_LE(RelativeError(got, want), kErrorBound);
    EXPECT_TRUE(SameBits(got, MustAttend(rows, q.data(), attention)));
  });
}

TEST(AttentionTiledTest, EveryFormatGivesTheBitsOfRows) {
  for (const uint32_t dim : {64u, 96u, 128u, 256u}) {
    const LayerShape shape{.kv_heads = 2, .key_dim = dim, .value_dim = dim};
    for (const quant::TensorFormat& format : FormatsFor(dim)) {
      if (!quant::HasTiled(format)) continue;
      SCOPED_TRACE(quant::ToString(format) + " dim " + std::to_string(dim));
      ExpectTiledLikeRows(shape, {{format, format}}, UniformBlocks(150, 64),
                          ShapeOf(shape, 4, 1, 149));
      ExpectTiledLikeRows(shape, {{format, format}}, UniformBlocks(150, 64),
                          ShapeOf(shape, 3, 30, 120));
    }
  }
}

TEST(AttentionTiledTest, EveryGeometryGivesTheBitsOfRows) {
  const LayerShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 128};
  const KvFormat formats[] = {
      {quant::MlxAffineFormat(8, 64, Dtype::kF16), quant::MlxAffineFormat(4, 32, Dtype::kF16)},
      {quant::MlxAffineFormat(4, 32, Dtype::kBf16), quant::MlxAffineFormat(8, 128, Dtype::kF16)},
      {quant::GgmlFormat(quant::Codec::kQ8_0), quant::GgmlFormat(quant::Codec::kQ4_1)},
      {quant::GgmlFormat(quant::Codec::kQ4_0), quant::GgmlFormat(quant::Codec::kQ8_0)}};
  const std::vector<std::vector<BlockShape>> geometries = {
      UniformBlocks(260, 128),
      UniformBlocks(260, 16),
      UniformBlocks(260, 37),
      UniformBlocks(260, 1),
      {{64, 64}, {32, 32}, {164, 192}},
      {{3, 3}, {64, 64}, {128, 128}, {65, 65}},
      {{64, 128}, {128, 200}, {48, 48}, {20, 256}}};
  for (const KvFormat& format : formats) {
    for (const std::vector<BlockShape>& blocks : geometries) {
      SCOPED_TRACE(quant::ToString(format) + ", " + std::to_string(blocks.size()) + " blocks of " +
                   std::to_string(blocks[0].page_tokens));
      ExpectTiledLikeRows(shape, {format}, blocks, ShapeOf(shape, 2, 20, 240));
      ExpectTiledLikeRows(shape, {format}, blocks, ShapeOf(shape, 2, 1, 259));
      AttentionShape windowed = ShapeOf(shape, 2, 20, 240);
      windowed.window = 77;
      windowed.sink_tokens = 5;
      ExpectTiledLikeRows(shape, {format}, blocks, windowed);
    }
  }
}

TEST(AttentionTiledTest, TiledAndOtherBlocksMayShareATable) {
  const LayerShape shape{.kv_heads = 2, .key_dim = 128, .value_dim = 64};
  const KvFormat eight{quant::MlxAffineFormat(8, 64, Dtype::kF16),
                       quant::MlxAffineFormat(8, 32, Dtype::kF16)};
  const KvFormat four{quant::MlxAffineFormat(4, 32, Dtype::kF16),
                      quant::MlxAffineFormat(4, 64, Dtype::kF16)};
  const KvFormat raw{quant::RawFormat(Dtype::kF16), quant::RawFormat(Dtype::kF16)};
  const std::vector<BlockShape> blocks = {{64, 64, 0}, {64, 64, 1},  {30, 64, 2},
                                          {64, 64, 1}, {64, 128, 2}, {20, 20, 0}};
  // Few rows and many: 4 bits are unpacked as they are multiplied, or before.
  for (const uint32_t rows : {1u, 10u}) {
    const AttentionShape attention = ShapeOf(shape, 4, rows, 300 - rows);
    ExpectTiledLikeRows(shape, {eight, four, eight}, blocks, attention);
    ExpectTiledLikeRows(shape, {raw, four, eight}, blocks, attention);
  }
}

}  // namespace
}  // namespace prefixd::kernels
