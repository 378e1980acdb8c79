#include "block/split_layers.h"

#include <set>

#include "gtest/gtest.h"

#include "block/page_layout.h"
#include "tests/block/samples.h"

namespace prefixd::block {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Every group valid, every layer in exactly one group, groups in order of their first layer.
void ExpectWhole(const std::vector<LayerGroup>& groups, uint32_t layers) {
  std::set<uint32_t> seen;
  for (size_t i = 0; i < groups.size(); ++i) {
    EXPECT_TRUE(Validate(groups[i]).ok()) << Validate(groups[i]);
    for (uint32_t layer : groups[i].layers) EXPECT_TRUE(seen.insert(layer).second) << layer;
    if (i > 0) {
      EXPECT_LT(groups[i - 1].layers.front(), groups[i].layers.front());
    }
  }
  EXPECT_EQ(seen.size(), layers);
  EXPECT_EQ(*seen.rbegin(), layers - 1);
}

std::vector<size_t> SizesOf(const std::vector<LayerGroup>& groups) {
  std::vector<size_t> sizes;
  for (const LayerGroup& group : groups) sizes.push_back(group.layers.size());
  return sizes;
}

TEST(SplitLayersTest, QwenAtEightBitsIsFourGroupsOfSevenLayersJustBelowOneMiB) {
  const std::vector<LayerGroup> groups = ModelOf(kQwen06B, {Mlx(8), Mlx(8)}).groups;
  ExpectWhole(groups, 28);
  EXPECT_EQ(SizesOf(groups), (std::vector<size_t>{7, 7, 7, 7}));
  EXPECT_EQ(groups[3].name, "full.3");
  EXPECT_EQ(LayoutOfPage(groups[0], 0, 64).page_bytes, 974'848u);
}

TEST(SplitLayersTest, GroupsAreAsEqualAsTheirNumberAllows) {
  const std::vector<LayerGroup> layers(30, FullLayer(kQwen06B, {Mlx(8), Mlx(8)}));
  const std::vector<LayerGroup> groups = SplitLayers(layers, 64);
  ExpectWhole(groups, 30);
  EXPECT_EQ(SizesOf(groups), (std::vector<size_t>{6, 6, 6, 6, 6}));
  EXPECT_EQ(SizesOf(SplitLayers({layers.begin(), layers.begin() + 16}, 64)),
            (std::vector<size_t>{6, 5, 5}));
}

TEST(SplitLayersTest, APageIsAtMostOneMiBAndOneMoreLayerWouldNotFit) {
  for (uint32_t block_tokens : {16u, 32u, 64u, 128u}) {
    for (uint8_t bits : std::vector<uint8_t>{4, 8}) {
      const std::vector<LayerGroup> groups = SplitLayers(
          std::vector<LayerGroup>(64, FullLayer(kLlama8B, {Mlx(bits), Mlx(bits)})), block_tokens);
      ExpectWhole(groups, 64);
      uint64_t total = 0;
      for (const LayerGroup& group : groups) {
        const uint64_t page_bytes = LayoutOfPage(group, 0, block_tokens).page_bytes;
        EXPECT_LE(page_bytes, kMiB);
        total += page_bytes;
      }
      const uint64_t layer_bytes = total / 64, fitting = kMiB / layer_bytes;
      EXPECT_EQ(groups.size(), (64 + fitting - 1) / fitting);  // the fewest
    }
  }
}

TEST(SplitLayersTest, APageOfExactlyOneMiBIsAllowed) {
  const quant::TensorFormat f16 = quant::RawFormat(quant::Dtype::kF16);
  const std::vector<LayerGroup> groups = ModelOf(kQwen06B, {f16, f16}).groups;
  EXPECT_EQ(groups.size(), 7u);
  EXPECT_EQ(LayoutOfPage(groups[0], 0, 64).page_bytes, kMiB);
}

TEST(SplitLayersTest, TheFinestRungDecides) {
  LayerGroup layer = FullLayer(kQwen06B, {Mlx(8), Mlx(8)});
  layer.ladder.push_back({Mlx(4), Mlx(4)});
  EXPECT_EQ(SplitLayers(std::vector<LayerGroup>(28, layer), 64).size(), 4u);
}

// One full layer after every five sliding ones, then recurrent layers: kinds never mix.
TEST(SplitLayersTest, MixedKindsAreGroupedApartInOrderOfTheirFirstLayer) {
  LayerGroup full = FullLayer(kQwen06B, {Mlx(8), Mlx(8)});
  LayerGroup sliding = full;
  sliding.kind = LayerKind::kSliding;
  sliding.window = 1024;
  LayerGroup state;
  state.kind = LayerKind::kState;
  state.state_bytes = 300'000;
  std::vector<LayerGroup> layers;
  for (int i = 0; i < 24; ++i) layers.push_back(i % 6 == 5 ? full : sliding);
  layers.insert(layers.end(), 4, state);

  const std::vector<LayerGroup> groups = SplitLayers(layers, 64);
  ExpectWhole(groups, 28);
  ASSERT_EQ(groups.size(), 6u);
  EXPECT_EQ(groups[0].name, "sliding.0");
  EXPECT_EQ(groups[0].layers, (std::vector<uint32_t>{0, 1, 2, 3, 4, 6, 7}));
  EXPECT_EQ(groups[1].name, "full.0");
  EXPECT_EQ(groups[1].layers, (std::vector<uint32_t>{5, 11, 17, 23}));
  EXPECT_EQ(groups[2].name, "sliding.1");
  EXPECT_EQ(groups[3].name, "sliding.2");
  EXPECT_EQ(groups[4].name, "state.0");
  EXPECT_EQ(groups[4].state_bytes, 600'000u);  // of both layers' snapshot
  EXPECT_EQ(groups[5].layers, (std::vector<uint32_t>{26, 27}));
}

TEST(SplitLayersTest, LayersThatDifferInOneNumberAreNotGrouped) {
  LayerGroup narrow = FullLayer(kQwen06B, {Mlx(8), Mlx(8)}), wide = narrow;
  wide.value_dim = 192;
  const std::vector<LayerGroup> groups = SplitLayers({narrow, wide, narrow}, 64);
  ExpectWhole(groups, 3);
  EXPECT_EQ(SizesOf(groups), (std::vector<size_t>{2, 1}));
}

TEST(SplitLayersTest, AModelOfManyHugeLayersStaysWithinTheGroupLimit) {
  const quant::TensorFormat f32 = quant::RawFormat(quant::Dtype::kF32);
  const std::vector<LayerGroup> groups =
      SplitLayers(std::vector<LayerGroup>(200, FullLayer({200, 32, 128}, {f32, f32})), 64);
  ExpectWhole(groups, 200);
  EXPECT_LE(groups.size(), size_t{kMaxGroups});
}

TEST(SplitLayersTest, NoLayersMakeNoGroups) { EXPECT_TRUE(SplitLayers({}, 64).empty()); }

}  // namespace
}  // namespace prefixd::block
