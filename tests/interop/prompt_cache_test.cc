// mlx-lm's prompt-cache files, in the layout of formats.md 1.6 and in that of mlx-lm 0.32,
// of which tests/data/mlx_lm has a file that mlx-lm itself wrote.
#include "interop/prompt_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "interop/safetensors_writer.h"
#include "quant/codec.h"
#include "tests/interop/checkpoint_files.h"

namespace prefixd::interop {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr char kWrittenByMlxLm[] = PREFIXD_TEST_DATA "/mlx_lm/prompt_cache.safetensors";

Array RandomArray(TensorDtype dtype, const std::vector<uint64_t>& shape, uint32_t seed) {
  Array array{.dtype = dtype, .shape = shape};
  std::vector<std::byte> bytes(array.elements() * BytesOf(dtype));
  std::mt19937 random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  array.memory = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  array.bytes = *array.memory;
  return array;
}

MlxCache Plain(uint64_t tokens) {
  return {.class_name = "KVCache",
          .state = {{"0", RandomArray(TensorDtype::kBf16, {1, 2, tokens, 64}, 1)},
                    {"1", RandomArray(TensorDtype::kBf16, {1, 2, tokens, 32}, 2)}}};
}
MlxCache Quantized(uint64_t tokens) {
  return {.class_name = "QuantizedKVCache",
          .state = {{"0.0", RandomArray(TensorDtype::kU32, {1, 2, tokens, 16}, 3)},
                    {"0.1", RandomArray(TensorDtype::kF16, {1, 2, tokens, 1}, 4)},
                    {"0.2", RandomArray(TensorDtype::kF16, {1, 2, tokens, 1}, 5)},
                    {"1.0", RandomArray(TensorDtype::kU32, {1, 2, tokens, 16}, 6)},
                    {"1.1", RandomArray(TensorDtype::kF16, {1, 2, tokens, 1}, 7)},
                    {"1.2", RandomArray(TensorDtype::kF16, {1, 2, tokens, 1}, 8)}},
          .meta = {absl::StrCat(tokens), "64", "8"}};
}
MlxCache Rotating() {
  MlxCache cache = Plain(8);
  cache.class_name = "RotatingKVCache";
  cache.meta = {"2", "8", "11", "5"};
  return cache;
}
MlxCache State() {
  StateArrays state{{RandomArray(TensorDtype::kF32, {1, 3, 4}, 9), Array{.shape = {0}}}};
  return MlxCacheOf(state);
}

void ExpectSame(const MlxCache& seen, const MlxCache& wanted) {
  EXPECT_EQ(seen.class_name, wanted.class_name);
  EXPECT_EQ(seen.meta, wanted.meta);
  ASSERT_EQ(seen.state.size(), wanted.state.size()) << wanted.class_name;
  for (const auto& [path, array] : wanted.state) {
    ASSERT_TRUE(seen.state.contains(path)) << wanted.class_name << " " << path;
    EXPECT_EQ(seen.state.at(path).dtype, array.dtype) << path;
    EXPECT_EQ(seen.state.at(path).shape, array.shape) << path;
    EXPECT_TRUE(std::ranges::equal(seen.state.at(path).bytes, array.bytes)) << path;
  }
  ASSERT_EQ(seen.children.size(), wanted.children.size());
  for (size_t i = 0; i < seen.children.size(); ++i) {
    ExpectSame(seen.children[i], wanted.children[i]);
  }
}

class PromptCacheTest : public CheckpointTest {
 protected:
  PromptCache Written(const PromptCache& cache) const {
    const std::string path = PathOf("cache.safetensors");
    const absl::Status status = WritePromptCache(path, cache);
    EXPECT_TRUE(status.ok()) << status;
    absl::StatusOr<PromptCache> read = ReadPromptCache(path);
    EXPECT_TRUE(read.ok()) << read.status();
    return read.ok() ? *std::move(read) : PromptCache{};
  }
};

TEST_F(PromptCacheTest, EveryClassComesBackInBothStyles) {
  PromptCache cache;
  cache.layers = {
      Plain(5),
      Quantized(5),
      Rotating(),
      State(),
      {.class_name = "CacheList", .state = {}, .meta = {}, .children = {Plain(3), Rotating()}}};
  cache.metadata = {{"model", "tiny"}, {"chat_template", "{% if a.b %}"}};
  const PromptCache old = Written(cache);
  EXPECT_EQ(old.style, PromptCacheStyle::kMetaState);
  EXPECT_EQ(old.metadata, cache.metadata);
  ASSERT_EQ(old.layers.size(), 5u);
  for (size_t i = 0; i < 5; ++i) ExpectSame(old.layers[i], cache.layers[i]);

  // There a KVCache has its offset as a number.
  PromptCache scalars = cache;
  scalars.style = PromptCacheStyle::kScalars;
  scalars.layers[0].meta = {"5"};
  scalars.layers[4].children[0].meta = {"3"};
  const PromptCache read = Written(scalars);
  EXPECT_EQ(read.style, PromptCacheStyle::kScalars);
  EXPECT_EQ(read.metadata, cache.metadata);
  for (size_t i = 0; i < 5; ++i) ExpectSame(read.layers[i], scalars.layers[i]);
}

// Names and metadata as save_prompt_cache flattens them.
TEST_F(PromptCacheTest, NamesAreThoseOfTheFormat) {
  PromptCache cache;
  cache.layers = {Plain(5), Quantized(5)};
  cache.metadata = {{"model", "tiny"}};
  const PromptCache read = Written(cache);
  std::vector<std::string> names;
  for (const Tensor& tensor : read.file->tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names,
              ElementsAre("0.0", "0.1", "1.0.0", "1.0.1", "1.0.2", "1.1.0", "1.1.1", "1.1.2"));
  EXPECT_THAT(read.file->metadata(),
              ElementsAre(Pair("0.0", ""), Pair("0.1.0", "5"), Pair("0.1.1", "64"),
                          Pair("0.1.2", "8"), Pair("1.model", "tiny"), Pair("2.0", "KVCache"),
                          Pair("2.1", "QuantizedKVCache")));
}

// What make.py of tests/data/mlx_lm gave to mlx-lm.
std::vector<std::byte> Drawn(int drawn, uint32_t dim) {
  std::vector<float> values;
  for (int head = 0; head < 2; ++head) {
    for (int token = 0; token < 5; ++token) {
      for (uint32_t channel = 0; channel < dim; ++channel) {
        values.push_back(std::sin(static_cast<float>(drawn) + 3.0f * static_cast<float>(head) +
                                  static_cast<float>(token) / 7 + static_cast<float>(channel) / 5));
      }
    }
  }
  std::vector<std::byte> bytes(values.size() * 2);
  quant::NarrowFromFloat(quant::Dtype::kF16, values.data(), values.size(), bytes.data());
  return bytes;
}

float LargestDifference(const std::vector<std::byte>& seen, const std::vector<std::byte>& wanted) {
  EXPECT_EQ(seen.size(), wanted.size());
  std::vector<float> a(seen.size() / 2), b(wanted.size() / 2);
  quant::WidenToFloat(quant::Dtype::kF16, seen.data(), a.size(), a.data());
  quant::WidenToFloat(quant::Dtype::kF16, wanted.data(), b.size(), b.data());
  float largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::fabs(a[i] - b[i]));
  }
  return largest;
}

TEST_F(PromptCacheTest, AFileOfMlxLmIsReadToTheToken) {
  const absl::StatusOr<PromptCache> file = ReadPromptCache(kWrittenByMlxLm);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->style, PromptCacheStyle::kScalars);
  EXPECT_THAT(file->metadata, ElementsAre(Pair("model", "tiny")));
  ASSERT_EQ(file->layers.size(), 5u);
  const absl::StatusOr<KvRows> plain = ReadKvRows(file->layers[0]);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->rows, 5u) << "256 are allocated";
  EXPECT_LE(LargestDifference(plain->key.codes, Drawn(1, 32)), 1e-3f);
  EXPECT_LE(LargestDifference(plain->value.codes, Drawn(2, 64)), 1e-3f);

  const absl::StatusOr<KvRows> packed = ReadKvRows(file->layers[1]);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(quant::ToString(packed->value.format), "mlx_affine/4/32/f16");
  const quant::RowBytes row = quant::BytesOfStoredRow(packed->value.format, 64);
  std::vector<float> values(10 * 64);
  for (size_t i = 0; i < 10; ++i) {
    quant::DequantizeRow(
        packed->value.format,
        {packed->value.codes.data() + i * row.codes, packed->value.scales.data() + i * row.scales,
         packed->value.biases.data() + i * row.biases},
        std::span(values).subspan(i * 64, 64));
  }
  std::vector<std::byte> halves(values.size() * 2);
  quant::NarrowFromFloat(quant::Dtype::kF16, values.data(), values.size(), halves.data());
  EXPECT_LE(LargestDifference(halves, Drawn(4, 64)), 2.0f / 15) << "a step of 4 bits";

  // Position p has elements p in K and -p in V: 0, 1 stay, then the last six of eleven.
  const absl::StatusOr<KvRows> rotating = ReadKvRows(file->layers[2]);
  ASSERT_TRUE(rotating.ok()) << rotating.status();
  EXPECT_EQ(rotating->offset, 11u);
  std::vector<float> seen(rotating->value.codes.size() / 2);
  quant::WidenToFloat(quant::Dtype::kF16, rotating->value.codes.data(), seen.size(), seen.data());
  for (uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(seen[i * 4], -static_cast<float>(rotating->PositionOf(i)));
  }
  EXPECT_EQ(rotating->PositionOf(2), 5u);

  const absl::StatusOr<StateArrays> state = ReadStateArrays(file->layers[3]);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->arrays.size(), 2u);
  EXPECT_EQ(SnapshotOf(*state).size(), 2u * 3 * 4 * 2);
  ASSERT_EQ(file->layers[4].children.size(), 2u);
  EXPECT_EQ(file->layers[4].children[1].class_name, "QuantizedKVCache");
  EXPECT_EQ(*TokensOf(file->layers[4]), 5u);
}

TEST_F(PromptCacheTest, WhatIsNoPromptCacheIsRefusedByName) {
  const auto refusal = [&](const std::string& header, const std::string& data) {
    this->CheckpointTest::WriteSafetensors("bad.safetensors", header, data);
    const absl::Status status = ReadPromptCache(PathOf("bad.safetensors")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal("{}", ""), HasSubstr("no class names"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"2.0":"","1.0":"KVCache"}})", ""),
              HasSubstr("no number 0.2 of a KVCache"));
  EXPECT_FALSE(ReadPromptCache(PathOf("absent")).ok());
  PromptCache cache;
  cache.layers = {Plain(5)};
  cache.metadata = {{"a.b", "x"}};
  EXPECT_THAT(std::string(WritePromptCache(PathOf("x"), cache).message()), HasSubstr("a dot"));
  cache.metadata.clear();
  cache.style = PromptCacheStyle::kScalars;
  cache.layers[0] = Quantized(5);
  cache.layers[0].meta = {"5", "64", "8", "32", "4"};
  EXPECT_THAT(std::string(WritePromptCache(PathOf("x"), cache).message()),
              HasSubstr("the same bits and groups"));
}

TEST_F(PromptCacheTest, AWrittenFileIsWholeOrNotThere) {
  const Tensor tensor{.name = "a", .dtype = TensorDtype::kF32, .shape = {3}, .bytes = {}};
  EXPECT_THAT(std::string(interop::WriteSafetensors(PathOf("x"), {&tensor, 1}, {}).message()),
              HasSubstr("tensor a has 0 bytes, its shape wants 12"));
  EXPECT_FALSE(std::filesystem::exists(PathOf("x")));
  EXPECT_FALSE(interop::WriteSafetensors(PathOf("no/such/folder/x"), {}, {}).ok());
}

}  // namespace
}  // namespace prefixd::interop
