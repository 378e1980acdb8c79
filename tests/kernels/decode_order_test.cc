// The two orders of fast decode (src/kernels/decode/order.h): the same bits, within the bounds.
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/attention.h"
#include "kernels/batch.h"
#include "kernels/decode/job.h"
#include "kernels/decode/order.h"
#include "tests/kernels/attention_checks.h"
#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::kernels {
namespace {

using quant::Codec;
using quant::Dtype;
using quant::KvFormat;
using quant::TensorFormat;

TensorFormat Affine(uint8_t bits, uint16_t group = 64, Dtype dtype = Dtype::kF16) {
  return quant::Tiled(quant::MlxAffineFormat(bits, group, dtype));
}
TensorFormat Ggml(Codec codec) { return quant::Tiled(quant::GgmlFormat(codec)); }

// All that is pipelined, with bound on the relative RMS error.
struct PipelinedFormat {
  KvFormat format;
  double bound = 0;
};
const std::vector<PipelinedFormat>& PipelinedFormats() {
  static const std::vector<PipelinedFormat> formats = {
      {{Affine(8), Affine(4)}, 0.03},
      {{Affine(8), Affine(8)}, 1e-3},
      {{Affine(4), Affine(4)}, 0.03},
      {{Ggml(Codec::kQ8_0), Ggml(Codec::kQ8_0)}, 1e-3},
      {{Ggml(Codec::kQ4_0), Ggml(Codec::kQ4_0)}, 0.03},
      {{Affine(8, 64, Dtype::kBf16), Affine(4, 64, Dtype::kF16)}, 0.03},
      {{quant::InRows(Affine(8)), quant::InRows(Affine(4))}, 0.03},
      {{Ggml(Codec::kQ8_0), quant::InRows(Ggml(Codec::kQ8_0))}, 1e-3},
      {{quant::InRows(Ggml(Codec::kQ4_0)), quant::InRows(Ggml(Codec::kQ4_0))}, 0.03}};
  return formats;
}

AttentionShape FastShape(const LayerShape& layer, uint32_t group, uint32_t rows, uint32_t first) {
  AttentionShape shape = ShapeOf(layer, group, rows, first);
  shape.mode = AttentionMode::kFast;
  return shape;
}

class DecodeOrderTest : public ::testing::Test {
 protected:
  ~DecodeOrderTest() override { ForgetOrder(); }

  static std::vector<float> In(DecodeOrder order, const PagedLayer& layer,
                               const AttentionShape& shape) {
    ForceOrder(order);
    return MustAttend(layer, RandomFloats(QueryFloats(shape), 5).data(), shape);
  }
  // Returns the result in both orders after a check that it is the same.
  static std::vector<float> InBoth(const PagedLayer& layer, const AttentionShape& shape) {
    const std::vector<float> staged = In(DecodeOrder::kStaged, layer, shape);
    EXPECT_TRUE(SameBits(In(DecodeOrder::kPipelined, layer, shape), staged));
    return staged;
  }
  static double Error(const PagedLayer& layer, const AttentionShape& shape) {
    return RelativeRms(InBoth(layer, shape),
                       Expected(layer, RandomFloats(QueryFloats(shape), 5).data(), shape));
  }
};

constexpr LayerShape kTwoHeads{.kv_heads = 2, .key_dim = 128, .value_dim = 128};
constexpr LayerShape kOneHead{.kv_heads = 1, .key_dim = 128, .value_dim = 128};

TEST_F(DecodeOrderTest, BothOrdersGiveTheSameBitsWithinTheBoundInEveryFormat) {
  for (const PipelinedFormat& what : PipelinedFormats()) {
    SCOPED_TRACE(quant::ToString(what.format));
    for (const uint32_t tokens : {64u, 65u, 128u, 200u, 704u}) {
      SCOPED_TRACE(tokens);
      const PagedLayer layer(kTwoHeads, {what.format}, UniformBlocks(tokens, 64));
      EXPECT_LE(Error(layer, FastShape(kTwoHeads, 4, 1, tokens - 1)), what.bound);
    }
  }
}

// With one head the tile before belongs to the same row heads. Heads of 8 fill two strips; rows of
// 3 heads none alone.
TEST_F(DecodeOrderTest, BothOrdersGiveTheSameBitsForEveryNumberOfHeadsAndRows) {
  for (const PipelinedFormat& what : PipelinedFormats()) {
    SCOPED_TRACE(quant::ToString(what.format));
    const PagedLayer one(kOneHead, {what.format}, UniformBlocks(300, 64));
    const PagedLayer two(kTwoHeads, {what.format}, UniformBlocks(300, 64));
    for (const uint32_t group : {1u, 3u, 4u, 8u}) {
      for (const uint32_t rows : {1u, 2u, 4u, 5u}) {
        SCOPED_TRACE(std::to_string(group) + " heads, " + std::to_string(rows) + " rows");
        InBoth(one, FastShape(kOneHead, group, rows, 300 - rows));
        InBoth(two, FastShape(kTwoHeads, group, rows, 300 - rows));
      }
    }
  }
}

TEST_F(DecodeOrderTest, PagesOfSeveralTilesAndCutOnesGiveTheSameBits) {
  for (const PipelinedFormat& what : PipelinedFormats()) {
    SCOPED_TRACE(quant::ToString(what.format));
    const std::vector<BlockShape> shapes[] = {
        UniformBlocks(520, 128),
        UniformBlocks(1100, 256),
        {{64, 64}, {17, 64}, {64, 64}, {100, 128}, {128, 192}, {64, 64}},
        {{64, 64}, {30, 64}, {30, 32}, {64, 64}, {64, 64}, {1, 16}, {192, 192}}};
    for (const std::vector<BlockShape>& blocks : shapes) {
      uint32_t tokens = 0;
      for (const BlockShape& block : blocks) tokens += block.tokens;
      SCOPED_TRACE(tokens);
      for (const LayerShape& shape : {kOneHead, kTwoHeads}) {
        const PagedLayer layer(shape, {what.format}, blocks);
        EXPECT_LE(Error(layer, FastShape(shape, 4, 1, tokens - 1)), what.bound);
      }
    }
  }
}

// Scores of hundreds: the references of row heads move again and again, in either half of a tile.
TEST_F(DecodeOrderTest, ReferencesThatMoveGiveTheSameBits) {
  for (const PipelinedFormat& what : PipelinedFormats()) {
    SCOPED_TRACE(quant::ToString(what.format));
    for (const LayerShape& shape : {kOneHead, kTwoHeads}) {
      const PagedLayer layer(shape, {what.format}, UniformBlocks(3000, 64));
      for (const float scale : {0.5f, 4.0f, 100.0f, -4.0f}) {
        SCOPED_TRACE(scale);
        AttentionShape attention = FastShape(shape, 4, 1, 2999);
        attention.scale = scale;
        for (const float x : InBoth(layer, attention)) ASSERT_TRUE(std::isfinite(x));
      }
    }
  }
}

TEST_F(DecodeOrderTest, WindowsSinksAndSoftCapsGiveTheSameBits) {
  const PagedLayer layer(kTwoHeads, {PipelinedFormats()[0].format}, UniformBlocks(1000, 64));
  for (const uint32_t window : {1u, 64u, 100u, 300u, 640u}) {
    for (const uint32_t sinks : {0u, 4u, 64u, 100u}) {
      SCOPED_TRACE(std::to_string(window) + " after " + std::to_string(sinks));
      AttentionShape shape = FastShape(kTwoHeads, 4, 2, 998);
      shape.window = window;
      shape.sink_tokens = sinks;
      EXPECT_LE(Error(layer, shape), 0.06);
    }
  }
  AttentionShape capped = FastShape(kTwoHeads, 4, 2, 998);
  capped.soft_cap = 2;
  EXPECT_LE(Error(layer, capped), 0.03);
}

TEST_F(DecodeOrderTest, FormatsThatChangeFromBlockToBlockGiveTheSameBits) {
  std::vector<KvFormat> formats;
  for (const PipelinedFormat& what : PipelinedFormats()) formats.push_back(what.format);
  formats.push_back({Affine(8, 128), Affine(4, 32)});
  formats.push_back({quant::RawFormat(Dtype::kF16), quant::RawFormat(Dtype::kF16)});
  std::vector<BlockShape> alike, mixed;  // alike: all have values in groups of 64
  for (const uint32_t format : {0u, 0u, 1u, 2u, 2u, 5u, 6u, 6u, 10u, 5u}) {
    alike.push_back({64, 64, format});
  }
  for (const uint32_t format : {0u, 0u, 3u, 4u, 4u, 1u, 9u, 10u, 8u, 2u, 7u}) {
    mixed.push_back({64, 64, format});
  }
  for (const LayerShape& shape : {kOneHead, kTwoHeads}) {
    const PagedLayer alike_layer(shape, formats, alike), mixed_layer(shape, formats, mixed);
    EXPECT_LE(Error(alike_layer, FastShape(shape, 4, 1, 639)), 0.03);
    EXPECT_LE(Error(mixed_layer, FastShape(shape, 4, 1, 703)), 0.03);
  }
}

// A batch makes strips of other row heads, and tiles that one sequence sees whole and another in
// part.
TEST_F(DecodeOrderTest, ABatchHasTheBitsOfSeparateCallsInBothOrders) {
  const PagedLayer layer(kTwoHeads, {PipelinedFormats()[0].format}, UniformBlocks(640, 64));
  for (const uint32_t group : {2u, 3u, 4u}) {
    AttentionShape shape = FastShape(kTwoHeads, group, 1, 0);
    std::vector<std::vector<float>> q, out;
    std::vector<BatchItem> items;
    std::vector<float> want;
    const uint32_t lengths[] = {640, 500, 639, 576, 70};
    for (uint32_t i = 0; i < 5; ++i) {
      q.push_back(RandomFloats(QueryFloats(shape), 20 + i));
      out.emplace_back(OutFloats(shape));
    }
    for (const DecodeOrder order : {DecodeOrder::kStaged, DecodeOrder::kPipelined}) {
      SCOPED_TRACE(ToText(order));
      ForceOrder(order);
      items.clear();
      for (uint32_t i = 0; i < 5; ++i) {
        items.push_back({.table = layer.table(),
                         .q = q[i].data(),
                         .out = out[i].data(),
                         .first_position = lengths[i] - 1});
      }
      ASSERT_TRUE(AttendBatch(items, layer.formats(), shape).ok());
      for (uint32_t i = 0; i < 5; ++i) {
        AttentionShape alone = shape;
        alone.first_position = lengths[i] - 1;
        EXPECT_TRUE(SameBits(MustAttend(layer, q[i].data(), alone), out[i])) << "sequence " << i;
      }
    }
  }
}

TEST_F(DecodeOrderTest, NothingOutsideAPageIsReadInBothOrders) {
  for (const PipelinedFormat& what : PipelinedFormats()) {
    SCOPED_TRACE(quant::ToString(what.format));
    for (const std::vector<BlockShape>& blocks :
         {UniformBlocks(256, 64), std::vector<BlockShape>{{128, 128}, {64, 64}, {64, 80}}}) {
      const PagedLayer layer(kTwoHeads, {what.format}, blocks);
      const AttentionShape shape = FastShape(kTwoHeads, 4, 1, 255);
      const std::vector<float> q = RandomFloats(QueryFloats(shape), 5);
      const std::vector<float> want = MustAttend(layer, q.data(), shape);
      for (const Guard guard : {Guard::kBefore, Guard::kBehind}) {
        const GuardedPages guarded(layer, kTwoHeads, guard);
        for (const DecodeOrder order : {DecodeOrder::kStaged, DecodeOrder::kPipelined}) {
          ForceOrder(order);
          std::vector<float> out(OutFloats(shape));
          ASSERT_TRUE(Attend(guarded.table(), layer.formats(), q.data(), out.data(), shape).ok());
          EXPECT_TRUE(SameBits(out, want)) << ToText(order);
        }
      }
    }
  }
}

// Slots that no token owns hold NaN; here some count as tokens.
TEST_F(DecodeOrderTest, NanReachesOnlyRowsThatSeeItInBothOrders) {
  for (const PipelinedFormat& what : PipelinedFormats()) {
    SCOPED_TRACE(quant::ToString(what.format));
    const PagedLayer layer(kOneHead, {what.format}, {{64, 64}, {40, 64}, {64, 64}, {64, 64}});
    std::vector<quant::BlockTableEntry> table(layer.table().begin(), layer.table().end());
    table[1].tokens = 64;  // positions 104 to 127 are NaN
    for (const DecodeOrder order : {DecodeOrder::kStaged, DecodeOrder::kPipelined}) {
      SCOPED_TRACE(ToText(order));
      ForceOrder(order);
      for (const uint32_t position : {103u, 104u, 127u, 255u}) {
        const AttentionShape shape = FastShape(kOneHead, 4, 1, position);
        std::vector<float> out(OutFloats(shape));
        const std::vector<float> q = RandomFloats(QueryFloats(shape), 5);
        ASSERT_TRUE(Attend(table, layer.formats(), q.data(), out.data(), shape).ok());
        for (const float x : out) ASSERT_EQ(std::isnan(x), position >= 104) << position;
      }
    }
  }
}
// One row head's query is NaN: its neighbours in the strip must not notice, and must still move
// their references.
TEST_F(DecodeOrderTest, NanInOneQueryStaysThere) {
  for (const PipelinedFormat& what : PipelinedFormats()) {
    SCOPED_TRACE(quant::ToString(what.format));
    const PagedLayer layer(kOneHead, {what.format}, UniformBlocks(2048, 64));
    AttentionShape shape = FastShape(kOneHead, 4, 1, 2047);
    shape.scale = 100;  // a weight overflows where a reference should have moved and did not
    const std::vector<float> clean = RandomFloats(QueryFloats(shape), 5);
    for (const DecodeOrder order : {DecodeOrder::kStaged, DecodeOrder::kPipelined}) {
      SCOPED_TRACE(ToText(order));
      ForceOrder(order);
      const std::vector<float> want = MustAttend(layer, clean.data(), shape);
      std::vector<float> q = clean;
      q[128 + 7] = std::nanf("");
      std::vector<float> got(OutFloats(shape));
      ASSERT_TRUE(Attend(layer.table(), layer.formats(), q.data(), got.data(), shape).ok());
      for (size_t i = 0; i < got.size(); ++i) {
        if (i / 128 != 1) {
          ASSERT_EQ(got[i], want[i]) << i;
        }
      }
    }
  }
}

TEST_F(DecodeOrderTest, TheOrderOfThisCpuIsSaidAndMayBeForcedWhereThereIsAPipeline) {
  const std::string own = FastDecodeOrder();
  if (own == "none") GTEST_SKIP() << "no fast mode on this CPU";
  ForceOrder(DecodeOrder::kStaged);
  EXPECT_STREQ(FastDecodeOrder(), "staged");
  ForceOrder(DecodeOrder::kPipelined);
  EXPECT_STREQ(FastDecodeOrder(), DecodesInPipeline() ? "pipelined" : "staged");
  ForgetOrder();
  EXPECT_EQ(FastDecodeOrder(), own);
}

}  // namespace
}  // namespace prefixd::kernels
