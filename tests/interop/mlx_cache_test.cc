// The cache objects of formats.md 1.5: state and meta_state to rows and pages, and back.
#include "interop/mlx_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "block/page_layout.h"

namespace prefixd::interop {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Shape = std::vector<uint64_t>;

Array ArrayOf(TensorDtype dtype, Shape shape, std::vector<std::byte> bytes) {
  Array array{.dtype = dtype, .shape = std::move(shape)};
  array.memory = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  array.bytes = *array.memory;
  return array;
}

Array RandomArray(TensorDtype dtype, const Shape& shape, uint32_t seed) {
  Array array{.dtype = dtype, .shape = shape};
  std::vector<std::byte> bytes(array.elements() * BytesOf(dtype));
  std::mt19937 random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return ArrayOf(dtype, shape, std::move(bytes));
}

// [1, heads, tokens, columns] cut to tokens of `order`, one after the other.
std::vector<std::byte> Rows(const Array& array, const std::vector<uint64_t>& order) {
  const size_t row = array.shape[3] * BytesOf(array.dtype);
  std::vector<std::byte> rows;
  for (uint64_t head = 0; head < array.shape[1]; ++head) {
    for (const uint64_t token : order) {
      const auto from = array.bytes.subspan((head * array.shape[2] + token) * row, row);
      rows.insert(rows.end(), from.begin(), from.end());
    }
  }
  return rows;
}

std::vector<uint64_t> Upto(uint64_t end, uint64_t begin = 0) {
  std::vector<uint64_t> order(end - begin);
  std::iota(order.begin(), order.end(), begin);
  return order;
}

std::vector<uint64_t> Joined(std::vector<std::vector<uint64_t>> runs) {
  std::vector<uint64_t> all;
  for (const auto& run : runs) all.insert(all.end(), run.begin(), run.end());
  return all;
}

// K of 64 elements and V of 128 in 2 heads, in `tokens` allocated slots.
MlxCache RawCache(uint64_t tokens) {
  return {.class_name = "KVCache",
          .state = {{"0", RandomArray(TensorDtype::kF16, {1, 2, tokens, 64}, 1)},
                    {"1", RandomArray(TensorDtype::kF16, {1, 2, tokens, 128}, 2)}}};
}

struct Bits {
  uint64_t bits, group;
};
MlxCache QuantizedCache(uint64_t tokens, Bits key, Bits value, std::vector<std::string> meta) {
  MlxCache cache{.class_name = "QuantizedKVCache", .state = {}, .meta = std::move(meta)};
  const auto add = [&](const std::string& path, uint64_t dim, Bits bits, uint32_t seed) {
    cache.state[path + ".0"] =
        RandomArray(TensorDtype::kU32, {1, 2, tokens, dim * bits.bits / 32}, seed);
    cache.state[path + ".1"] =
        RandomArray(TensorDtype::kBf16, {1, 2, tokens, dim / bits.group}, seed + 1);
    cache.state[path + ".2"] =
        RandomArray(TensorDtype::kBf16, {1, 2, tokens, dim / bits.group}, seed + 2);
  };
  add("0", 64, key, 10);
  add("1", 128, value, 20);
  return cache;
}

KvRows RowsOf(const MlxCache& cache) {
  const absl::StatusOr<KvRows> rows = ReadKvRows(cache);
  EXPECT_TRUE(rows.ok()) << rows.status();
  return rows.ok() ? *rows : KvRows{};
}

std::string Refusal(const MlxCache& cache) {
  const absl::Status status = ReadKvRows(cache).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

void ExpectSame(const MlxCache& seen, const MlxCache& wanted) {
  EXPECT_EQ(seen.class_name, wanted.class_name);
  EXPECT_EQ(seen.meta, wanted.meta);
  ASSERT_EQ(seen.state.size(), wanted.state.size());
  for (const auto& [path, array] : wanted.state) {
    ASSERT_TRUE(seen.state.contains(path)) << path;
    const Array& other = seen.state.at(path);
    EXPECT_EQ(other.dtype, array.dtype) << path;
    EXPECT_EQ(other.shape, array.shape) << path;
    EXPECT_TRUE(std::ranges::equal(other.bytes, array.bytes)) << path;
  }
}

MlxCache Back(const KvRows& rows) {
  const absl::StatusOr<MlxCache> cache = MlxCacheOf(rows);
  EXPECT_TRUE(cache.ok()) << cache.status();
  return cache.ok() ? *cache : MlxCache{};
}

// --- whole caches

TEST(MlxCacheTest, AKvCacheComesAndGoesWithKAndVAsTheyAre) {
  const MlxCache cache = RawCache(17);
  const KvRows rows = RowsOf(cache);
  EXPECT_EQ(rows.kv_heads, 2u);
  EXPECT_EQ(rows.rows, 17u);
  EXPECT_EQ(rows.offset, 17u);
  EXPECT_TRUE(rows.is_prefix());
  EXPECT_EQ(rows.key.dim, 64u);
  EXPECT_EQ(rows.value.dim, 128u);
  EXPECT_EQ(rows.key.codes, Rows(cache.state.at("0"), Upto(17)));
  EXPECT_EQ(rows.value.codes, Rows(cache.state.at("1"), Upto(17)));
  ExpectSame(Back(rows), cache);
}

TEST(MlxCacheTest, AQuantizedCacheKeepsCodesScalesAndBiasesOfBoth) {
  const MlxCache cache = QuantizedCache(9, {8, 64}, {8, 64}, {"9", "64", "8"});
  const KvRows rows = RowsOf(cache);
  EXPECT_EQ(quant::ToString(rows.key.format), "mlx_affine/8/64/bf16");
  EXPECT_EQ(rows.key.scales, Rows(cache.state.at("0.1"), Upto(9)));
  EXPECT_EQ(rows.value.biases, Rows(cache.state.at("1.2"), Upto(9)));
  ExpectSame(Back(rows), cache);
}

// K and V bits and groups apart, in the meta of 5 fields.
TEST(MlxCacheTest, KMayDifferFromVInBitsAndGroups) {
  const MlxCache cache = QuantizedCache(9, {8, 64}, {3, 32}, {"9", "64", "8", "32", "3"});
  const KvRows rows = RowsOf(cache);
  EXPECT_EQ(quant::ToString(rows.key.format), "mlx_affine/8/64/bf16");
  EXPECT_EQ(quant::ToString(rows.value.format), "mlx_affine/3/32/bf16");
  ExpectSame(Back(rows), cache);
  EXPECT_THAT(Refusal(QuantizedCache(9, {8, 64}, {3, 32}, {"9", "64", "8"})),
              HasSubstr("does not divide"))
      << "V read with the bits of K";
  EXPECT_THAT(Refusal(QuantizedCache(9, {8, 64}, {3, 32}, {"9", "32", "3", "64", "8"})),
              HasSubstr("does not divide"))
      << "K and V swapped";
}

// What is allocated behind the offset is stale: 255 tokens at most, and none of them may get out.
TEST(MlxCacheTest, OverAllocatedBuffersAreCutToTheirOffset) {
  MlxCache cache = QuantizedCache(256, {4, 32}, {4, 32}, {"44", "32", "4"});
  const KvRows rows = RowsOf(cache);
  EXPECT_EQ(rows.rows, 44u);
  EXPECT_EQ(rows.offset, 44u);
  EXPECT_EQ(rows.key.codes, Rows(cache.state.at("0.0"), Upto(44)));
  EXPECT_EQ(rows.value.scales, Rows(cache.state.at("1.1"), Upto(44)));
  MlxCache raw = RawCache(256);
  raw.meta = {"44"};
  EXPECT_EQ(RowsOf(raw).value.codes, Rows(raw.state.at("1"), Upto(44)));
  cache.meta = {"257", "32", "4"};
  EXPECT_EQ(Refusal(cache),
            "mlx cache: QuantizedKVCache: offset is 257, its arrays have 256 tokens");
}

// S4-10: an object that calls itself empty has nothing to store, and is told so.
TEST(MlxCacheTest, CachesOfNoTokensAreRefused) {
  EXPECT_THAT(Refusal(RawCache(0)), HasSubstr("has no tokens"));
  EXPECT_THAT(Refusal(QuantizedCache(256, {8, 64}, {8, 64}, {"0", "64", "8"})),
              HasSubstr("has no tokens"));
  MlxCache rotating = RawCache(8);
  rotating.class_name = "RotatingKVCache";
  rotating.meta = {"4", "8", "0", "0"};
  EXPECT_THAT(Refusal(rotating), HasSubstr("has no tokens"));
  EXPECT_FALSE(MlxCacheOf(KvRows{}).ok());
}

// The object's size() is 0 for a quantized cache; the offset is what counts.
TEST(MlxCacheTest, TokensAreCountedByTheOffset) {
  EXPECT_EQ(*TokensOf(RawCache(17)), 17u);
  EXPECT_EQ(*TokensOf(QuantizedCache(256, {8, 64}, {8, 64}, {"44", "64", "8"})), 44u);
  MlxCache rotating = RawCache(8);
  rotating.class_name = "RotatingKVCache";
  rotating.meta = {"2", "8", "100", "5"};
  EXPECT_EQ(*TokensOf(rotating), 100u);
  const MlxCache list{
      .class_name = "CacheList", .state = {}, .meta = {}, .children = {RawCache(17), rotating}};
  EXPECT_EQ(*TokensOf(list), 100u);
  EXPECT_EQ(*TokensOf({.class_name = "ArraysCache"}), std::nullopt);
}

// --- rotating caches

MlxCache Rotating(uint64_t allocated, std::vector<std::string> meta) {
  MlxCache cache = RawCache(allocated);
  cache.class_name = "RotatingKVCache";
  cache.meta = std::move(meta);
  return cache;
}

// Before the first wrap tokens stand where their positions are.
TEST(MlxCacheTest, ARotatingCacheBeforeItsFirstWrapIsAPrefix) {
  const MlxCache cache = Rotating(16, {"4", "16", "11", "11"});
  const KvRows rows = RowsOf(cache);
  EXPECT_EQ(rows.rows, 11u);
  EXPECT_TRUE(rows.is_prefix());
  EXPECT_EQ(rows.value.codes, Rows(cache.state.at("1"), Upto(11)));
  EXPECT_TRUE(RowsOf(Rotating(16, {"4", "16", "16", "16"})).is_prefix());
}

// [0:keep], [_idx:], [keep:_idx]
TEST(MlxCacheTest, AWrappedRotatingCacheComesInTemporalOrderAtItsOffset) {
  const MlxCache cache = Rotating(16, {"4", "16", "35", "11"});
  KvRows rows = RowsOf(cache);
  EXPECT_EQ(rows.rows, 16u);
  EXPECT_EQ(rows.offset, 35u);
  EXPECT_FALSE(rows.is_prefix());
  const std::vector<uint64_t> order = Joined({Upto(4), Upto(16, 11), Upto(11, 4)});
  EXPECT_EQ(rows.key.codes, Rows(cache.state.at("0"), order));
  EXPECT_EQ(rows.value.codes, Rows(cache.state.at("1"), order));
  // The window's rows are the last 12 tokens of 35, behind the four that stay.
  EXPECT_EQ(rows.PositionOf(3), 3u);
  EXPECT_EQ(rows.PositionOf(4), 23u);
  EXPECT_EQ(rows.PositionOf(15), 34u);
  EXPECT_THAT(std::string(Cut(10, &rows).message()), HasSubstr("is not a prefix"));

  // Back: the same rows in temporal order, _idx at their end, and from there the same again.
  const MlxCache back = Back(rows);
  EXPECT_THAT(back.meta, ElementsAre("4", "16", "35", "16"));
  const KvRows again = RowsOf(back);
  EXPECT_EQ(again.key.codes, rows.key.codes);
  EXPECT_EQ(again.offset, 35u);
}

// After a prompt of many tokens it holds max_size + S - 1, in order already.
TEST(MlxCacheTest, ARotatingCacheAfterAPromptIsInOrderAndLonger) {
  const MlxCache cache = Rotating(20, {"4", "16", "50", "20"});
  const KvRows rows = RowsOf(cache);
  EXPECT_EQ(rows.rows, 20u);
  EXPECT_EQ(rows.key.codes, Rows(cache.state.at("0"), Upto(20)));
  EXPECT_EQ(rows.PositionOf(4), 34u);
  ExpectSame(Back(rows), cache);
}

TEST(MlxCacheTest, AQuantizedRotatingCacheHasEightFieldsOrFour) {
  MlxCache cache =
      QuantizedCache(16, {8, 64}, {4, 32}, {"4", "16", "35", "11", "64", "8", "32", "4"});
  cache.class_name = "QuantizedRotatingKVCache";
  const KvRows rows = RowsOf(cache);
  const std::vector<uint64_t> order = Joined({Upto(4), Upto(16, 11), Upto(11, 4)});
  EXPECT_EQ(rows.key.scales, Rows(cache.state.at("0.1"), order));
  EXPECT_EQ(rows.value.codes, Rows(cache.state.at("1.0"), order));
  EXPECT_THAT(Back(rows).meta, ElementsAre("4", "16", "35", "16", "64", "8", "32", "4"));

  MlxCache four = QuantizedCache(16, {8, 64}, {8, 64}, {"4", "16", "35", "11"});
  four.class_name = "QuantizedRotatingKVCache";
  EXPECT_EQ(RowsOf(four).key.codes, Rows(four.state.at("0.0"), order));
}

TEST(MlxCacheTest, RotatingMetaThatCannotBeIsRefused) {
  EXPECT_THAT(Refusal(Rotating(16, {"4", "16", "35"})), HasSubstr("3 fields, expected 4"));
  EXPECT_THAT(Refusal(Rotating(16, {"4", "16", "35", "3"})), HasSubstr("_idx is 3"));
  EXPECT_THAT(Refusal(Rotating(16, {"4", "16", "35", "17"})), HasSubstr("_idx is 17"));
  EXPECT_THAT(Refusal(Rotating(16, {"4", "16", "9", "16"})), HasSubstr("_idx is 16 at offset 9"));
  EXPECT_THAT(Refusal(Rotating(16, {"4", "16", "x", "5"})), HasSubstr("\"x\""));
  EXPECT_THAT(Refusal(Rotating(16, {"4", "0", "35", "11"})), HasSubstr("max_size is 0"));
}

// --- what cannot be

TEST(MlxCacheTest, WhatDoesNotFitTogetherIsRefusedByName) {
  MlxCache cache = RawCache(9);
  cache.class_name = "BatchKVCache";
  EXPECT_THAT(Refusal(cache), HasSubstr("accepted: KVCache, QuantizedKVCache"));
  cache = RawCache(9);
  cache.state.at("1") = RandomArray(TensorDtype::kF16, {1, 2, 8, 128}, 2);
  EXPECT_EQ(Refusal(cache), "mlx cache: KVCache: K has 2 heads and 9 tokens, V has 2 and 8");
  cache.state.at("1") = RandomArray(TensorDtype::kF16, {2, 2, 9, 128}, 2);
  EXPECT_THAT(Refusal(cache), HasSubstr("is a batch of 2"));
  cache.state.at("1") = RandomArray(TensorDtype::kI32, {1, 2, 9, 128}, 2);
  EXPECT_THAT(Refusal(cache), HasSubstr("is I32, must be F32, F16 or BF16"));
  cache.state.erase("1");
  EXPECT_THAT(Refusal(cache), HasSubstr("no array 1"));
  cache = QuantizedCache(9, {8, 64}, {8, 64}, {"9", "64", "7"});
  EXPECT_THAT(Refusal(cache), HasSubstr("bits of mlx_affine 7"));
  cache = QuantizedCache(9, {8, 64}, {8, 64}, {"9", "64", "8"});
  cache.state.erase("1.2");
  EXPECT_THAT(Refusal(cache), HasSubstr("no array 1.2"));
  KvRows rows = RowsOf(RawCache(9));
  rows.value.format = quant::GgmlFormat(quant::Codec::kQ8_0);
  EXPECT_FALSE(MlxCacheOf(rows).ok());
}

// --- pages

block::LayerGroup GroupOf(const KvRows& rows, quant::KvFormat format) {
  block::LayerGroup group;
  group.name = "full.0";
  group.layers = {0, 1, 2};
  group.kv_heads = rows.kv_heads;
  group.key_dim = rows.key.dim;
  group.value_dim = rows.value.dim;
  group.ladder = {format};
  EXPECT_TRUE(block::Validate(group).ok()) << block::Validate(group);
  return group;
}

// All rows through pages of 32 tokens, the last of which is cut to what it holds.
KvRows ThroughPages(const KvRows& rows, const block::LayerGroup& group) {
  KvRows back = rows;
  for (RowsOfTensor* tensor : {&back.key, &back.value}) {
    tensor->codes.clear();
    tensor->scales.clear();
    tensor->biases.clear();
  }
  for (uint32_t begin = 0; begin < rows.rows; begin += 32) {
    PlaceInPage place{.group = group,
                      .rung = 0,
                      .layer = 1,
                      .page_tokens = 32,
                      .slot = 0,
                      .first_row = begin,
                      .count = std::min(32u, rows.rows - begin)};
    std::vector<std::byte> page(block::LayoutOfPage(group, 0, 32).page_bytes);
    EXPECT_TRUE(CopyToPage(rows, place, page.data()).ok());
    std::vector<std::byte> cut(block::LayoutOfPage(group, 0, place.count).page_bytes);
    block::CutPage(group, 0, page.data(), 32, place.count, cut.data());
    place.page_tokens = place.count;
    EXPECT_TRUE(CopyFromPage(cut.data(), place, &back).ok());
  }
  return back;
}

TEST(KvRowsTest, PagesGiveBackEveryByteOfEveryKindOfCache) {
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF16);
  const KvRows plain = RowsOf(RawCache(77));
  ExpectSame(Back(ThroughPages(plain, GroupOf(plain, {raw, raw}))), RawCache(77));
  ExpectSame(Back(ThroughPages(plain, GroupOf(plain, {raw, quant::Transposed(raw)}))),
             RawCache(77));
  const MlxCache cache = QuantizedCache(77, {8, 64}, {4, 32}, {"77", "64", "8", "32", "4"});
  const KvRows packed = RowsOf(cache);
  const quant::KvFormat format{packed.key.format, packed.value.format};
  ExpectSame(Back(ThroughPages(packed, GroupOf(packed, format))), cache);
  const quant::KvFormat tiled{quant::Tiled(format.key), quant::Tiled(format.value)};
  ExpectSame(Back(ThroughPages(packed, GroupOf(packed, tiled))), cache);
  const KvRows window = RowsOf(Rotating(16, {"4", "16", "35", "11"}));
  const KvRows again = ThroughPages(window, GroupOf(window, {raw, raw}));
  EXPECT_EQ(again.value.codes, window.value.codes);
  EXPECT_EQ(again.offset, 35u);
}

TEST(KvRowsTest, RowsOfAnotherShapeOrFormatAreRefused) {
  const KvRows rows = RowsOf(RawCache(40));
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF16);
  const block::LayerGroup group = GroupOf(rows, {raw, raw});
  std::vector<std::byte> page(block::LayoutOfPage(group, 0, 32).page_bytes);
  const auto refusal = [&](const block::LayerGroup& other, PlaceInPage place) {
    const PlaceInPage in{.group = other,
                         .rung = 0,
                         .layer = 0,
                         .page_tokens = place.page_tokens,
                         .slot = place.slot,
                         .first_row = place.first_row,
                         .count = place.count};
    const absl::Status status = CopyToPage(rows, in, page.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const PlaceInPage fits{.group = group, .page_tokens = 32, .count = 32};
  block::LayerGroup other = group;
  std::swap(other.key_dim, other.value_dim);
  EXPECT_THAT(refusal(other, fits), HasSubstr("key rows have 64 elements, the group's 128"));
  other = group;
  other.kv_heads = 3;
  EXPECT_THAT(refusal(other, fits), HasSubstr("2 heads, the group has 3"));
  other = group;
  other.ladder[0].value = quant::RawFormat(quant::Dtype::kBf16);
  EXPECT_THAT(refusal(other, fits), HasSubstr("value rows are raw/f16, the page is of raw/bf16"));
  EXPECT_THAT(refusal(group, {.group = group, .page_tokens = 32, .first_row = 20, .count = 21}),
              HasSubstr("rows 20 to 41 of 40"));
  EXPECT_THAT(refusal(group, {.group = group, .page_tokens = 32, .slot = 1, .count = 32}),
              HasSubstr("in slots from 1 of 32"));
}

// A cache cut at a token is that of the shorter sequence.
TEST(KvRowsTest, APrefixIsCutToTheToken) {
  const MlxCache cache = QuantizedCache(77, {8, 64}, {4, 32}, {"77", "64", "8", "32", "4"});
  KvRows rows = RowsOf(cache);
  ASSERT_TRUE(Cut(44, &rows).ok());
  EXPECT_EQ(rows.offset, 44u);
  EXPECT_EQ(rows.key.codes, Rows(cache.state.at("0.0"), Upto(44)));
  EXPECT_EQ(rows.value.biases, Rows(cache.state.at("1.2"), Upto(44)));
  EXPECT_FALSE(Cut(45, &rows).ok());
}

// --- recurrent state

TEST(MlxStateTest, ArraysComeBackFromTheirSnapshot) {
  MlxCache cache{.class_name = "ArraysCache",
                 .state = {{"0.0", RandomArray(TensorDtype::kF32, {1, 3, 96}, 1)},
                           {"0.1", ArrayOf(TensorDtype::kF32, {0}, {})},
                           {"0.2", RandomArray(TensorDtype::kBf16, {1, 4, 8, 8}, 2)},
                           {"1", ArrayOf(TensorDtype::kF32, {0}, {})},
                           {"2", ArrayOf(TensorDtype::kF32, {0}, {})}}};
  const absl::StatusOr<StateArrays> state = ReadStateArrays(cache);
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_EQ(state->arrays.size(), 3u);
  const std::vector<std::byte> snapshot = SnapshotOf(*state);
  EXPECT_EQ(snapshot.size(), 3u * 96 * 4 + 4 * 64 * 2);
  const absl::StatusOr<StateArrays> back = StateOfSnapshot(*state, snapshot);
  ASSERT_TRUE(back.ok()) << back.status();
  ExpectSame(MlxCacheOf(*back), cache);
  EXPECT_FALSE(StateOfSnapshot(*state, std::span(snapshot).first(100)).ok());

  // Releases before had the list of arrays alone.
  const MlxCache flat{.class_name = "MambaCache",
                      .state = {{"0", cache.state.at("0.0")}, {"1", cache.state.at("0.2")}}};
  EXPECT_EQ(ReadStateArrays(flat)->arrays.size(), 2u);
  cache.state["2"] = RandomArray(TensorDtype::kI32, {3}, 1);
  EXPECT_THAT(std::string(ReadStateArrays(cache).status().message()), HasSubstr("a batch"));
}

}  // namespace
}  // namespace prefixd::interop
