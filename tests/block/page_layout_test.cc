#include "block/page_layout.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "base/checksum.h"
#include "quant/unit.h"
#include "tests/block/samples.h"

namespace prefixd::block {
namespace {

using quant::Dtype;

// A number that depends on its place alone, in sixteenths: exact in f16 and bf16. golden_hashes.py
// has the same function.
float PageValue(uint32_t layer, bool is_value, uint32_t head, uint32_t token, uint32_t channel) {
  uint64_t x = (((layer * 2 + uint64_t{is_value}) * 16 + head) * 256 + token) * 1024 + channel + 1;
  x *= 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  x ^= x >> 31;
  return static_cast<float>(static_cast<int>(x >> 56) - 128) / 16.0f;
}

// Quantizes one unit, token by token, with the scalar codecs.
void FillUnit(const quant::TensorFormat& format, uint32_t dim, uint32_t tokens, uint32_t layer,
              bool is_value, uint32_t head, std::byte* unit) {
  const quant::UnitShape shape{.format = format,
                               .side = is_value ? quant::Side::kValue : quant::Side::kKey,
                               .dim = dim,
                               .page_tokens = tokens};
  std::vector<float> row(dim);
  for (uint32_t token = 0; token < tokens; ++token) {
    for (uint32_t c = 0; c < dim; ++c) row[c] = PageValue(layer, is_value, head, token, c);
    quant::QuantizeToken(shape, row, token, unit);
  }
}

// The page that the first `tokens` tokens of the seeded tensor make.
std::vector<std::byte> MakePage(const LayerGroup& group, uint32_t rung, uint32_t tokens) {
  const PageLayout layout = LayoutOfPage(group, rung, tokens);
  std::vector<std::byte> page(layout.page_bytes);
  for (uint32_t layer = 0; layer < group.layers.size(); ++layer) {
    for (uint32_t head = 0; head < group.kv_heads; ++head) {
      FillUnit(group.ladder[rung].key, group.key_dim, tokens, layer, false, head,
               page.data() + KeyUnitOffset(group, layout, layer, head));
      if (group.value_source != ValueSource::kStored) continue;
      FillUnit(group.ladder[rung].value, group.value_dim, tokens, layer, true, head,
               page.data() + ValueUnitOffset(group, layout, layer, head));
    }
  }
  return page;
}

// The same page, but of packed rows whose every byte depends on its place alone: no codec has a
// part in it.
std::vector<std::byte> MakePackedPage(const LayerGroup& group, uint32_t rung, uint32_t tokens) {
  const PageLayout layout = LayoutOfPage(group, rung, tokens);
  std::vector<std::byte> page(layout.page_bytes);
  const auto store = [&](const quant::UnitShape& shape, uint32_t layer, uint32_t head,
                         uint64_t at) {
    const bool is_value = shape.side == quant::Side::kValue;
    const quant::RowBytes row = quant::BytesOfStoredRow(quant::InRows(shape.format), shape.dim);
    std::vector<std::byte> packed(row.total());
    for (uint32_t token = 0; token < tokens; ++token) {
      for (uint32_t i = 0; i < packed.size(); ++i) {
        const float value = PageValue(layer, is_value, head, token, i) * 16 + 128;
        packed[i] = static_cast<std::byte>(value);
      }
      quant::StoreRow(shape,
                      {.codes = packed.data(),
                       .scales = packed.data() + row.codes,
                       .biases = packed.data() + row.codes + row.scales},
                      token, page.data() + at);
    }
  };
  for (uint32_t layer = 0; layer < group.layers.size(); ++layer) {
    for (uint32_t head = 0; head < group.kv_heads; ++head) {
      store({group.ladder[rung].key, quant::Side::kKey, group.key_dim, tokens}, layer, head,
            KeyUnitOffset(group, layout, layer, head));
      store({group.ladder[rung].value, quant::Side::kValue, group.value_dim, tokens}, layer, head,
            ValueUnitOffset(group, layout, layer, head));
    }
  }
  return page;
}

// 2 layers, 3 heads, K and V of different widths.
LayerGroup SmallGroup(uint32_t key_dim, uint32_t value_dim, const quant::KvFormat& format) {
  LayerGroup group;
  group.name = "small";
  group.layers = {4, 9};
  group.kv_heads = 3;
  group.key_dim = key_dim;
  group.value_dim = value_dim;
  group.ladder = {format};
  EXPECT_TRUE(Validate(group).ok()) << Validate(group);
  return group;
}

LayerGroup RawGroup() {
  return SmallGroup(40, 24, {quant::RawFormat(Dtype::kF16), quant::RawFormat(Dtype::kF32)});
}

LayerGroup KeyOnlyGroup() {
  LayerGroup group = SmallGroup(128, 128, {Mlx(8), Mlx(8)});
  group.value_source = ValueSource::kKeyPrefix;
  group.value_dim = group.value_prefix_dim = 64;
  EXPECT_TRUE(Validate(group).ok()) << Validate(group);
  return group;
}

std::vector<LayerGroup> ManyGroups() {
  const auto ggml = [](quant::Codec codec) { return quant::GgmlFormat(codec); };
  return {
      RawGroup(),
      KeyOnlyGroup(),
      SmallGroup(128, 64, {Mlx(8), Mlx(4)}),
      SmallGroup(64, 128, {Mlx(6, 32, Dtype::kBf16), Mlx(3, 32, Dtype::kF32)}),
      SmallGroup(128, 256, {Mlx(5, 128), Mlx(2, 128)}),
      SmallGroup(96, 32, {ggml(quant::Codec::kQ8_0), ggml(quant::Codec::kQ4_0)}),
      SmallGroup(64, 96, {ggml(quant::Codec::kQ5_1), ggml(quant::Codec::kQ5_0)}),
      SmallGroup(32, 80, {ggml(quant::Codec::kQ4_1), quant::RawFormat(Dtype::kBf16)}),
      SmallGroup(96, 48,
                 {quant::BlockFloatFormat(quant::Codec::kMxFp8),
                  quant::BlockFloatFormat(quant::Codec::kNvFp4)}),
      SmallGroup(64, 40,
                 {quant::RawFormat(Dtype::kF16), quant::Transposed(quant::RawFormat(Dtype::kF16))}),
      SmallGroup(128, 64, {quant::Tiled(Mlx(8)), quant::Tiled(Mlx(4))}),
      SmallGroup(64, 96, {quant::Tiled(Mlx(4)), quant::Tiled(Mlx(8, 32, Dtype::kF32))}),
      SmallGroup(
          64, 32,
          {quant::Tiled(ggml(quant::Codec::kQ4_0)), quant::Tiled(ggml(quant::Codec::kQ4_1))}),
      SmallGroup(
          32, 64,
          {quant::Tiled(ggml(quant::Codec::kQ4_1)), quant::Tiled(ggml(quant::Codec::kQ8_0))})};
}

std::string LabelOf(const LayerGroup& group) { return quant::ToString(group.ladder[0]); }

struct Golden {
  uint32_t tokens;
  uint64_t page_bytes;
  uint64_t xxh3;
};

void ExpectGolden(const LayerGroup& group, const std::vector<Golden>& golden,
                  std::vector<std::byte> (*make)(const LayerGroup&, uint32_t,
                                                 uint32_t) = MakePage) {
  for (const Golden& want : golden) {
    const std::vector<std::byte> page = make(group, 0, want.tokens);
    EXPECT_EQ(page.size(), want.page_bytes) << LabelOf(group) << ", tokens " << want.tokens;
    EXPECT_EQ(base::Xxh3(page), want.xxh3)
        << LabelOf(group) << ", tokens " << want.tokens << " 0x" << std::hex << base::Xxh3(page);
  }
}

// These constants come from golden_hashes.py, which shares no code with the project.
TEST(PageLayoutTest, RawPagesAreTheGoldenPages) {
  ExpectGolden(RawGroup(), {{1, 1536, 0x157996e0a342a4d0},
                            {31, 33792, 0xa5c49dd8b3f2653d},
                            {32, 33792, 0xaa6e8b75d6f13edf},
                            {63, 67584, 0x2fd2b148b742d98a},
                            {64, 67584, 0x7b1b3cd8ddfdb3a8}});
}

// Made once by the scalar codecs, which are held to MLX's and ggml's own vectors in tests/quant.
TEST(PageLayoutTest, QuantizedPagesAreTheGoldenPages) {
  ExpectGolden(SmallGroup(128, 64, {Mlx(8), Mlx(4)}), {{1, 2304, 0xb658d47890dbb3b7},
                                                       {31, 32256, 0x6dbcb62f8d3a1480},
                                                       {32, 33024, 0x92fbaf8000cc630b},
                                                       {63, 65280, 0x8609b3a7c0bb236f},
                                                       {64, 66048, 0x89f09242ce028fda}});
  ExpectGolden(SmallGroup(64, 128, {Mlx(6, 32, Dtype::kBf16), Mlx(3, 32, Dtype::kF32)}),
               {{1, 1536, 0xe3a39a77f1a5ad8c},
                {31, 26112, 0xbade89879bfb3f0a},
                {32, 26112, 0x13ca6538e1a3d8f1},
                {63, 52224, 0x8f05cd1b1979cc15},
                {64, 52224, 0xaf73a90b87f813db}});
  ExpectGolden(
      SmallGroup(96, 32,
                 {quant::GgmlFormat(quant::Codec::kQ8_0), quant::GgmlFormat(quant::Codec::kQ4_0)}),
      {{1, 1536, 0x67f7216160b3e8e1},
       {31, 23040, 0x1df07cbefeab727a},
       {32, 23808, 0xcae72293fbaf08e2},
       {63, 46080, 0x7200dc976c8ae078},
       {64, 46080, 0xcd58b337c4598f28}});
}

TEST(PageLayoutTest, UnitsFollowEachOtherLayerByLayerKeysBeforeValuesAligned) {
  for (const LayerGroup& group : ManyGroups()) {
    for (uint32_t tokens : {1u, 5u, 31u, 64u, 128u}) {
      const PageLayout layout = LayoutOfPage(group, 0, tokens);
      uint64_t expected = 0;
      for (uint32_t layer = 0; layer < 2; ++layer) {
        for (uint32_t head = 0; head < 3; ++head) {
          EXPECT_EQ(KeyUnitOffset(group, layout, layer, head), expected);
          EXPECT_EQ(expected % quant::kUnitAlignment, 0u);
          expected += layout.key_unit_bytes;
        }
        for (uint32_t head = 0; head < 3; ++head) {
          EXPECT_EQ(ValueUnitOffset(group, layout, layer, head), expected);
          EXPECT_EQ(expected % quant::kUnitAlignment, 0u);
          expected += layout.value_unit_bytes;
        }
      }
      EXPECT_EQ(layout.page_bytes, expected) << LabelOf(group);
    }
  }
}

TEST(PageLayoutTest, PayloadIsTheFormulaOfTheFormats) {
  // layers x heads x tokens x (dim x bits / 8 + 2 scales and biases a group), K and V apart.
  const LayerGroup group = SmallGroup(128, 64, {Mlx(8), Mlx(4)});
  EXPECT_EQ(LayoutOfPage(group, 0, 10).payload_bytes,
            2u * 3 * 10 * ((128 + 2 * 2 * 2) + (32 + 2 * 1 * 2)));
  EXPECT_EQ(LayoutOfPage(RawGroup(), 0, 7).payload_bytes, 2u * 3 * 7 * (40 * 2 + 24 * 4));
  EXPECT_EQ(LayoutOfPage(KeyOnlyGroup(), 0, 7).payload_bytes, 2u * 3 * 7 * (128 + 8));
}

TEST(PageLayoutTest, SixtyFourTokenMlxPagesHaveNoPadding) {
  for (uint8_t bits : std::vector<uint8_t>{2, 3, 4, 5, 6, 8}) {
    const LayerGroup group = SmallGroup(128, 128, {Mlx(bits), Mlx(bits)});
    const PageLayout layout = LayoutOfPage(group, 0, 64);
    EXPECT_EQ(layout.page_bytes, layout.payload_bytes) << int{bits};
  }
}

// These too come from golden_hashes.py: tiled is written down there a second time.
TEST(PageLayoutTest, TiledPagesAreTheGoldenPages) {
  const auto tiled_ggml = [](quant::Codec codec) { return quant::Tiled(quant::GgmlFormat(codec)); };
  ExpectGolden(SmallGroup(128, 64, {quant::Tiled(Mlx(8)), quant::Tiled(Mlx(4))}),
               {{1, 16896, 0x6925d34fac87f922},
                {31, 33024, 0x6429a7adf52a5962},
                {32, 33024, 0x471de95577c10367},
                {63, 66048, 0x32f57e5e758c7054},
                {64, 66048, 0x912846e5759616e4}},
               MakePackedPage);
  ExpectGolden(
      SmallGroup(96, 64,
                 {quant::Tiled(Mlx(4, 32, Dtype::kF32)), quant::Tiled(Mlx(8, 32, Dtype::kBf16))}),
      {{1, 13824, 0xceea64d92b7be35f},
       {31, 27648, 0x8ec3ae60e2f03cad},
       {32, 27648, 0x65a4fc7c6d570824},
       {63, 55296, 0x403a9f7c1d4713f4},
       {64, 55296, 0x7d20b1283099d231}},
      MakePackedPage);
  ExpectGolden(
      SmallGroup(64, 96, {tiled_ggml(quant::Codec::kQ8_0), tiled_ggml(quant::Codec::kQ4_0)}),
      {{1, 12288, 0xce379d8936060fdb},
       {31, 23808, 0x643cd25c2c668fa7},
       {32, 23808, 0x9f2c064127b17e2b},
       {63, 46848, 0x0a48d36ae596e6bb},
       {64, 46848, 0xf29efdb28b4f9199}},
      MakePackedPage);
  ExpectGolden(
      SmallGroup(64, 32, {tiled_ggml(quant::Codec::kQ4_1), tiled_ggml(quant::Codec::kQ4_1)}),
      {{1, 6144, 0x626dfcafd9f574fc},
       {31, 11520, 0x8f4907105282ea51},
       {32, 11520, 0xf26ac6de80fb1252},
       {63, 23040, 0xe0bd4dc6ec78cdfc},
       {64, 23040, 0x774012db5a31c231}},
      MakePackedPage);
}

// The contract: a page cut to t tokens is byte for byte the page that t tokens would have made.
TEST(PageLayoutTest, ACutPageIsThePageThatItsTokensWouldHaveMade) {
  for (const LayerGroup& group : ManyGroups()) {
    const std::vector<std::byte> whole = MakePage(group, 0, 64);
    for (uint32_t tokens = 1; tokens <= 64; ++tokens) {
      const std::vector<std::byte> wanted = MakePage(group, 0, tokens);
      std::vector<std::byte> cut(wanted.size(),
                                 std::byte{0xAA});  // CutPage also writes the padding
      CutPage(group, 0, whole.data(), 64, tokens, cut.data());
      ASSERT_EQ(cut, wanted) << LabelOf(group) << ", tokens " << tokens;
    }
  }
}

TEST(PageLayoutTest, CuttingTwiceIsCuttingOnce) {
  for (const LayerGroup& group : ManyGroups()) {
    const std::vector<std::byte> whole = MakePage(group, 0, 64);
    std::vector<std::byte> middle(LayoutOfPage(group, 0, 40).page_bytes);
    std::vector<std::byte> end(LayoutOfPage(group, 0, 13).page_bytes);
    CutPage(group, 0, whole.data(), 64, 40, middle.data());
    CutPage(group, 0, middle.data(), 40, 13, end.data());
    EXPECT_EQ(end, MakePage(group, 0, 13)) << LabelOf(group);
  }
}

TEST(PageLayoutTest, APageAssembledFromPiecesOfOtherPagesIsThePage) {
  std::mt19937 random(13);
  for (const LayerGroup& group : ManyGroups()) {
    const std::vector<std::byte> donor = MakePage(group, 0, 64);
    for (int round = 0; round < 20; ++round) {
      const uint32_t tokens = static_cast<uint32_t>(1 + random() % 64);
      std::vector<std::byte> built(LayoutOfPage(group, 0, tokens).page_bytes);
      for (uint32_t at = 0; at < tokens;) {
        const uint32_t count = static_cast<uint32_t>(1 + random() % (tokens - at));
        CopyPageTokens(group, 0, donor.data(), {.page_tokens = 64, .begin = at}, built.data(),
                       {.page_tokens = tokens, .begin = at}, count);
        at += count;
      }
      ASSERT_EQ(built, MakePage(group, 0, tokens)) << LabelOf(group) << ", tokens " << tokens;
    }
  }
}

TEST(PageLayoutTest, CopyingTokensLeavesAllOthersAlone) {
  for (const LayerGroup& group : ManyGroups()) {
    const std::vector<std::byte> donor = MakePage(group, 0, 64);
    std::vector<std::byte> page = MakePage(group, 0, 31);
    // Wipe tokens 7 to 18 with other tokens, then bring the right ones back.
    CopyPageTokens(group, 0, donor.data(), {64, 50}, page.data(), {31, 7}, 12);
    EXPECT_NE(page, MakePage(group, 0, 31));
    CopyPageTokens(group, 0, donor.data(), {64, 7}, page.data(), {31, 7}, 12);
    EXPECT_EQ(page, MakePage(group, 0, 31)) << LabelOf(group);
    CopyPageTokens(group, 0, donor.data(), {64, 50}, page.data(), {31, 7}, 0);
    EXPECT_EQ(page, MakePage(group, 0, 31)) << LabelOf(group);
  }
}

TEST(PageLayoutTest, ALowerRungHasItsOwnLayout) {
  LayerGroup group = SmallGroup(128, 128, {Mlx(8), Mlx(8)});
  group.ladder.push_back({Mlx(4), Mlx(4)});
  ASSERT_TRUE(Validate(group).ok());
  EXPECT_EQ(LayoutOfPage(group, 1, 64).payload_bytes, 2u * 3 * 64 * 2 * (64 + 8));
  const std::vector<std::byte> whole = MakePage(group, 1, 64);
  std::vector<std::byte> cut(LayoutOfPage(group, 1, 9).page_bytes);
  CutPage(group, 1, whole.data(), 64, 9, cut.data());
  EXPECT_EQ(cut, MakePage(group, 1, 9));
}

}  // namespace
}  // namespace prefixd::block
