// llama.cpp's sequence states: some made by hand, some that build 11549 wrote (tests/data/llama).
#include "interop/llama_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace prefixd::interop {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A blob by hand.
class Blob {
 public:
  template <typename T>
  Blob& Put(T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(value));
    return *this;
  }
  // `count` bytes that say where they stand.
  Blob& Count(uint8_t first, size_t count) {
    for (size_t i = 0; i < count; ++i) bytes_.push_back(static_cast<std::byte>(first + i));
    return *this;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Two tokens, the second of which stands in the first cell; one layer of 2 heads with K of 4 and V
// of 3 halves.
Blob Small(bool transposed, uint32_t version = 2) {
  Blob blob;
  blob.Put<uint32_t>(0x67677371).Put<uint32_t>(version);
  blob.Put<uint32_t>(2).Put<int32_t>(11).Put<int32_t>(12);
  blob.Put<uint32_t>(1).Put<uint32_t>(2);
  blob.Put<int32_t>(1).Put<uint32_t>(1).Put<int32_t>(0);
  blob.Put<int32_t>(0).Put<uint32_t>(1).Put<int32_t>(0);
  blob.Put<uint32_t>(transposed ? 1 : 0).Put<uint32_t>(1);
  if (version >= 4) blob.Put<uint32_t>(0).Put<uint32_t>(0);
  blob.Put<int32_t>(1).Put<uint64_t>(16).Count(0, 32);  // cells of [head 0][head 1]
  blob.Put<int32_t>(1);
  if (transposed) {
    blob.Put<uint32_t>(2).Put<uint32_t>(6);
  } else {
    blob.Put<uint64_t>(12);
  }
  return blob.Count(100, 24);
}
const std::vector<LlamaLayerShape> kSmall = {{.kv_heads = 2, .key_dim = 4, .value_dim = 3}};

std::vector<int> Numbers(const std::vector<std::byte>& bytes) {
  std::vector<int> numbers;
  for (const std::byte byte : bytes) numbers.push_back(std::to_integer<int>(byte));
  return numbers;
}

TEST(LlamaStateTest, RowsComeHeadByHeadInTheOrderOfTheirPositions) {
  const absl::StatusOr<LlamaState> state = ReadLlamaState(Small(false).bytes(), kSmall);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_THAT(state->tokens, ElementsAre(11, 12));
  ASSERT_EQ(state->layers.size(), 1u);
  const KvRows& rows = state->layers[0];
  EXPECT_EQ(rows.rows, 2u);
  EXPECT_TRUE(rows.is_prefix());
  EXPECT_EQ(quant::ToString(rows.key.format), "raw/f16");
  // Head 0: position 0 is cell 1, whose bytes begin at 16; then cell 0.
  EXPECT_THAT(Numbers(rows.key.codes),
              ElementsAre(16, 17, 18, 19, 20, 21, 22, 23, 0, 1, 2, 3, 4, 5, 6, 7,  //
                          24, 25, 26, 27, 28, 29, 30, 31, 8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_THAT(Numbers(rows.value.codes),
              ElementsAre(112, 113, 114, 115, 116, 117, 100, 101, 102, 103, 104, 105,  //
                          118, 119, 120, 121, 122, 123, 106, 107, 108, 109, 110, 111));
}

TEST(LlamaStateTest, TransposedValuesAreTurnedIntoRows) {
  const absl::StatusOr<LlamaState> state = ReadLlamaState(Small(true).bytes(), kSmall);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_TRUE(state->values_transposed);
  // Channel c of head h in cell i: 100 + ((3 h + c) * 2 + i) * 2.
  EXPECT_THAT(Numbers(state->layers[0].value.codes),
              ElementsAre(102, 103, 106, 107, 110, 111, 100, 101, 104, 105, 108, 109,  //
                          114, 115, 118, 119, 122, 123, 112, 113, 116, 117, 120, 121));
}

std::vector<std::byte> Random(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

LlamaState RandomState(const quant::TensorFormat& key, const quant::TensorFormat& value) {
  LlamaState state{.tokens = {5, 6, 7, 8, 9}, .layers = {}, .values_transposed = false};
  for (uint32_t layer = 0; layer < 3; ++layer) {
    KvRows& rows = state.layers.emplace_back();
    rows.kv_heads = 2;
    rows.rows = rows.offset = 5;
    rows.key = {key, 64, Random(10 * quant::BytesOfStoredRow(key, 64).codes, layer), {}, {}};
    rows.value = {
        value, 128, Random(10 * quant::BytesOfStoredRow(value, 128).codes, 9 + layer), {}, {}};
  }
  return state;
}

TEST(LlamaStateTest, EveryTypeComesBackByteForByte) {
  using quant::Codec;
  const std::vector<LlamaLayerShape> shapes(3, {.kv_heads = 2, .key_dim = 64, .value_dim = 128});
  for (const Codec codec :
       {Codec::kRaw, Codec::kQ4_0, Codec::kQ4_1, Codec::kQ5_0, Codec::kQ5_1, Codec::kQ8_0}) {
    const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kBf16);
    const quant::TensorFormat key = codec == Codec::kRaw ? raw : quant::GgmlFormat(codec);
    for (const bool transposed : {false, true}) {
      LlamaState state = RandomState(key, raw);
      state.values_transposed = transposed;
      const absl::StatusOr<std::vector<std::byte>> blob = WriteLlamaState(state);
      ASSERT_TRUE(blob.ok()) << blob.status();
      const absl::StatusOr<LlamaState> back = ReadLlamaState(*blob, shapes);
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(back->tokens, state.tokens);
      EXPECT_EQ(back->values_transposed, transposed);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(back->layers[i].key.format == key);
        EXPECT_EQ(back->layers[i].key.codes, state.layers[i].key.codes);
        EXPECT_EQ(back->layers[i].value.codes, state.layers[i].value.codes);
      }
    }
  }
}

TEST(LlamaStateTest, L9EveryVersionFromTwoToFourIsReadAndAnotherIsNamed) {
  const absl::StatusOr<LlamaState> oldest = ReadLlamaState(Small(false, 2).bytes(), kSmall);
  for (const uint32_t version : {2U, 3U, 4U}) {
    const absl::StatusOr<LlamaState> state = ReadLlamaState(Small(false, version).bytes(), kSmall);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->tokens, oldest->tokens);
    EXPECT_EQ(state->layers[0].key.codes, oldest->layers[0].key.codes);
    EXPECT_EQ(state->layers[0].value.codes, oldest->layers[0].value.codes);
  }
  for (const uint32_t version : {1U, 5U}) {
    EXPECT_THAT(
        std::string(MapLlamaState(Small(false, version).bytes()).status().message()),
        HasSubstr(absl::StrCat("version ", version, " is not known here, accepted: 2 to 4")));
  }
}

// --- what llama.cpp wrote

std::vector<std::byte> Written(const std::string& name) {
  std::ifstream file(PREFIXD_TEST_DATA "/llama/" + name, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
const char* const kWritten[] = {"q8_0_rotated.bin",
                                "q4_0_f16.bin",
                                "f16_transposed_3_streams.bin",
                                "f16_in_memory.bin",
                                "sliding_in_memory.bin",
                                "hybrid_in_memory.bin",
                                "q8_0_in_memory_version_3.bin"};

TEST(LlamaStateTest, L4StatesOfLlamaCppComeBackByteForByte) {
  for (const char* const name : kWritten) {
    const std::vector<std::byte> state = Written(name);
    const absl::StatusOr<LlamaStateMap> map = MapLlamaState(state);
    ASSERT_TRUE(map.ok()) << name << ": " << map.status();
    EXPECT_EQ(map->bytes, state.size());
    std::vector<uint32_t> first;
    for (const LlamaCacheMap& cache : map->caches) {
      EXPECT_TRUE(cache.order.empty());
      first.push_back(cache.first);
    }
    const LlamaStateMap again = LayOutLlamaState(map->context, map->tokens, map->length, first);
    ASSERT_EQ(again.bytes, state.size()) << name;
    EXPECT_EQ(again.recurrent, map->recurrent);
    std::vector<std::byte> copy = state;  // its rows stay, its heads are written again
    size_t at = 0;
    for (size_t i = 0; i < again.caches.size(); ++i) {
      EXPECT_EQ(again.caches[i].keys, map->caches[i].keys);
      EXPECT_EQ(again.caches[i].values, map->caches[i].values);
      for (; at < again.caches[i].keys[0]; ++at) copy[at] = std::byte{0xee};
      const size_t last = again.caches[i].values.size() - 1;
      at = again.caches[i].values[last] +
           map->context.caches[i].values[last].token_bytes * again.caches[i].cells;
    }
    WriteLlamaHeads(again, copy);
    EXPECT_EQ(copy, state) << name;
  }
}

TEST(LlamaStateTest, L4AStateSaysItsTokensTypesAndRotation) {
  const LlamaStateMap rotated = *MapLlamaState(Written("q8_0_rotated.bin"));
  EXPECT_THAT(rotated.tokens, ElementsAre('I', 'n', ' '));
  EXPECT_TRUE(rotated.context.packed_tokens);
  const LlamaCache& cache = rotated.context.caches.at(0);
  EXPECT_EQ(cache.key_rotation, 64u);
  EXPECT_EQ(cache.value_rotation, 64u);
  EXPECT_EQ(cache.keys.size(), 6u);
  EXPECT_EQ(quant::ToString(cache.keys[5].format), "q8_0");
  EXPECT_EQ(cache.keys[5].token_bytes, 136u);
  const LlamaCache mixed = MapLlamaState(Written("q4_0_f16.bin"))->context.caches.at(0);
  EXPECT_EQ(quant::ToString(mixed.keys[0].format), "q4_0");
  EXPECT_EQ(quant::ToString(mixed.values[0].format), "raw/f16");
  EXPECT_EQ(mixed.key_rotation, 64u);
  EXPECT_EQ(mixed.value_rotation, 0u);
  const LlamaStateMap transposed = *MapLlamaState(Written("f16_transposed_3_streams.bin"));
  EXPECT_TRUE(transposed.context.caches.at(0).values_transposed);
  EXPECT_EQ(transposed.context.caches.at(0).streams, 3u);
  EXPECT_EQ(transposed.length, 3u);
  const LlamaStateMap memory = *MapLlamaState(Written("f16_in_memory.bin"));
  EXPECT_TRUE(memory.context.in_memory);
  EXPECT_TRUE(memory.tokens.empty());
  EXPECT_EQ(memory.length, 4u);
}

TEST(LlamaStateTest, L4AStateInMemoryIsReadByTheVersionThatFits) {
  const LlamaStateMap older = *MapLlamaState(Written("q8_0_in_memory_version_3.bin"));
  EXPECT_EQ(older.context.version, 3u);
  EXPECT_EQ(older.length, 3u);
  const LlamaTensor& key = older.context.caches.at(0).keys.at(5);
  EXPECT_EQ(quant::ToString(key.format), "q8_0");
  EXPECT_TRUE(IsRotationUnknown(older.context, key, 64));
  EXPECT_FALSE(IsRotationUnknown(older.context, key, 96)) << "llama.cpp rotates multiples of 64";
  EXPECT_FALSE(IsRotationUnknown(older.context, {quant::RawFormat(quant::Dtype::kF16), 128}, 64));
  const LlamaStateMap newer = *MapLlamaState(Written("f16_in_memory.bin"));
  EXPECT_EQ(newer.context.version, 4u);
  std::vector<std::byte> neither = Written("f16_in_memory.bin");
  neither.pop_back();
  EXPECT_THAT(std::string(MapLlamaState(neither).status().message()), HasSubstr("ends in rows"));
}

TEST(LlamaStateTest, L4RowsThatMayBeRotatedAreRefused) {
  std::vector<std::byte> state = Written("q8_0_rotated.bin");
  const size_t first_type = MapLlamaState(state)->caches[0].keys[0] - 12;
  state[4] = std::byte{3};  // and without what version 4 says of the rotation
  state.erase(state.begin() + static_cast<ptrdiff_t>(first_type) - 8,
              state.begin() + static_cast<ptrdiff_t>(first_type));
  ASSERT_TRUE(MapLlamaState(state).ok()) << MapLlamaState(state).status();
  const std::vector<LlamaLayerShape> shapes(6, {.kv_heads = 2, .key_dim = 64, .value_dim = 64});
  EXPECT_THAT(std::string(ReadLlamaState(state, shapes).status().message()),
              HasSubstr("version 3 does not say whether rows of q8_0 are rotated"));
}

TEST(LlamaStateTest, L5AStateMayHaveASlidingCacheOrRecurrentStates) {
  const LlamaStateMap sliding = *MapLlamaState(Written("sliding_in_memory.bin"));
  ASSERT_EQ(sliding.caches.size(), 2u);
  EXPECT_EQ(sliding.length, 40u);
  EXPECT_EQ(sliding.caches[0].first, 0u);
  EXPECT_EQ(sliding.caches[1].first, 8u);  // of a window of 32
  EXPECT_EQ(sliding.caches[1].cells, 32u);
  const LlamaStateMap hybrid = *MapLlamaState(Written("hybrid_in_memory.bin"));
  ASSERT_EQ(hybrid.caches.size(), 1u);
  EXPECT_EQ(hybrid.length, 40u);
  // Two counts, and two layers of 512 bytes, each with two heads of 12 bytes.
  EXPECT_EQ(hybrid.context.recurrent_bytes, 8 + 2 * (512 + 24));
  EXPECT_EQ(hybrid.recurrent + hybrid.context.recurrent_bytes, hybrid.bytes);
  const std::vector<LlamaLayerShape> shapes(2, {.kv_heads = 2, .key_dim = 16, .value_dim = 16});
  EXPECT_THAT(
      std::string(ReadLlamaState(Written("hybrid_in_memory.bin"), shapes).status().message()),
      HasSubstr("with sliding or recurrent layers"));
  // Of another length than the caches: bytes of somebody else.
  std::vector<std::byte> other = Written("hybrid_in_memory.bin");
  other[hybrid.recurrent - 8] = std::byte{38};
  EXPECT_FALSE(MapLlamaState(other).ok());
}

TEST(LlamaStateTest, L5AStateOfAServerSaysWhatItHeldAfterFewerTokens) {
  const LlamaStateMap sliding = *MapLlamaState(Written("sliding_with_checkpoint.bin"));
  EXPECT_EQ(sliding.length, 44u);
  ASSERT_EQ(sliding.checkpoints.size(), 1u);
  EXPECT_EQ(sliding.checkpoints[0].length, 32u);
  EXPECT_EQ(sliding.checkpoints[0].sliding.first, 0u);
  EXPECT_EQ(sliding.checkpoints[0].sliding.cells, 32u);
  const LlamaStateMap hybrid = *MapLlamaState(Written("hybrid_with_checkpoints.bin"));
  EXPECT_EQ(hybrid.length, 15u);
  ASSERT_EQ(hybrid.checkpoints.size(), 2u);
  EXPECT_EQ(hybrid.checkpoints[0].length, 1u);
  EXPECT_EQ(hybrid.checkpoints[1].length, 3u);
  // Each checkpoint: magic, sequence, cell and position in front of the states.
  EXPECT_EQ(hybrid.checkpoints[0].recurrent, 5308u + 20);
  EXPECT_EQ(hybrid.checkpoints[1].recurrent, 6448u + 20);

  const LlamaStateMap cut = CutLlamaState(hybrid, hybrid.checkpoints[1]);
  EXPECT_EQ(cut.length, 3u);
  EXPECT_EQ(cut.tokens.size(), 3u);
  EXPECT_EQ(cut.recurrent, hybrid.checkpoints[1].recurrent);
  EXPECT_TRUE(cut.checkpoints.empty());
}

TEST(LlamaStateTest, L5CheckpointsThatAreNotUnderstoodArePassedOver) {
  const std::vector<std::byte> good = Written("hybrid_with_checkpoints.bin");
  const auto with = [&](size_t at, uint32_t value) {
    std::vector<std::byte> state = good;
    std::memcpy(state.data() + at, &value, sizeof(value));
    return MapLlamaState(state);
  };
  constexpr size_t kVersion = 5272 + 4, kSecondTokens = 6448 - 24, kSecondPosition = 6448 + 12;
  EXPECT_EQ(with(kVersion, 2)->checkpoints.size(), 0u);
  EXPECT_EQ(with(kSecondTokens, 4)->checkpoints.size(), 1u);  // its states are those after 3
  EXPECT_EQ(with(kSecondPosition, 9)->checkpoints.size(), 1u);
  std::vector<std::byte> whole = good;  // a checkpoint of as many tokens as the state has
  whole[kSecondTokens] = std::byte{15};
  whole[kSecondPosition] = std::byte{14};
  EXPECT_EQ(MapLlamaState(whole)->checkpoints.size(), 1u);
  const absl::Status cut = MapLlamaState(std::span(good).first(7000)).status();
  EXPECT_THAT(std::string(cut.message()), HasSubstr("ends in checkpoint 1: 1100 bytes expected"));
}

TEST(LlamaStateTest, L9DamagedCheckpointsStayWithinTheStateOrAreRefused) {
  std::mt19937 random(5);
  for (const char* const name : {"sliding_with_checkpoint.bin", "hybrid_with_checkpoints.bin"}) {
    const std::vector<std::byte> good = Written(name);
    const size_t begin = name[0] == 's' ? 40172 : 5272;  // the magic of checkpoints
    std::vector<std::byte> state = good;
    for (int i = 0; i < 200'000; ++i) {
      const size_t at = begin + random() % std::min<size_t>(good.size() - begin, 1200);
      state[at] = static_cast<std::byte>(random());
      if (const auto map = MapLlamaState(state); map.ok()) {
        for (const LlamaCheckpoint& checkpoint : map->checkpoints) {
          ASSERT_LT(checkpoint.length, map->length);
          ASSERT_LE(checkpoint.recurrent + map->context.recurrent_bytes, state.size());
          for (size_t layer = 0; layer < checkpoint.sliding.values.size(); ++layer) {
            const uint64_t row = map->context.caches[1].values[layer].token_bytes;
            ASSERT_LE(checkpoint.sliding.values[layer] + row * checkpoint.sliding.cells,
                      state.size());
          }
        }
      }
      state[at] = good[at];
    }
  }
}

TEST(LlamaStateTest, L4TheLabelOfRotatedRowsIsKept) {
  const std::vector<LlamaLayerShape> shapes(6, {.kv_heads = 2, .key_dim = 64, .value_dim = 64});
  const absl::StatusOr<LlamaState> state = ReadLlamaState(Written("q8_0_rotated.bin"), shapes);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(quant::ToString(state->layers[0].key.format), "q8_0/hadamard");
  const absl::StatusOr<LlamaStateMap> written = MapLlamaState(*WriteLlamaState(*state));
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(written->context.caches[0].key_rotation, 64u);
  EXPECT_EQ(written->context.caches[0].value_rotation, 64u);
  // One head of 128: rotated in blocks of 64, which the label does not say.
  const std::vector<LlamaLayerShape> wide(6, {.kv_heads = 1, .key_dim = 128, .value_dim = 128});
  EXPECT_THAT(std::string(ReadLlamaState(Written("q8_0_rotated.bin"), wide).status().message()),
              HasSubstr("keys of 128 elements are rotated in blocks of 64, accepted: 128"));
}

TEST(LlamaStateTest, PackedTokensWithImagesAreRefused) {
  const auto refusal = [](size_t at, int32_t value) {
    std::vector<std::byte> state = Written("q8_0_rotated.bin");
    std::memcpy(state.data() + 12 + 4 * at, &value, sizeof(value));
    return std::string(MapLlamaState(state).status().message());
  };
  EXPECT_THAT(refusal(6, 1), HasSubstr("holds 1 images or other media"));
  EXPECT_THAT(refusal(1, 2), HasSubstr("packed tokens of version 2 are not known"));
  EXPECT_THAT(refusal(2, 4), HasSubstr("4 packed tokens do not stand in a list of 7"));
  EXPECT_THAT(refusal(2, 2), HasSubstr("holds 32 images"));
}

TEST(LlamaStateTest, L9DamagedStatesOfLlamaCppAreMappedWithinThemselvesOrRefused) {
  std::mt19937 random(9);
  int refused = 0;
  constexpr int kMutations = 170'000;  // of each: 10^6
  for (const char* const name : kWritten) {
    const std::vector<std::byte> good = Written(name);
    const size_t heads = MapLlamaState(good)->caches[0].keys[0] + 300;  // and the first rows
    std::vector<std::byte> state = good;
    for (int i = 0; i < kMutations; ++i) {
      std::vector<size_t> changed;
      for (uint64_t change = random() % 3 + 1; change > 0; --change) {
        changed.push_back(random() % heads);
        state[changed.back()] = static_cast<std::byte>(random());
      }
      const size_t length = random() % 4 == 0 ? random() % state.size() : state.size();
      const auto map = MapLlamaState(std::span(state).first(length));
      refused += !map.ok();
      if (map.ok()) {
        ASSERT_EQ(map->bytes, length);
        ASSERT_LE(map->recurrent + map->context.recurrent_bytes, length);
        for (size_t i = 0; i < map->caches.size(); ++i) {
          const LlamaCache& cache = map->context.caches[i];
          const LlamaCacheMap& at = map->caches[i];
          for (size_t layer = 0; layer < at.keys.size(); ++layer) {
            ASSERT_LE(at.keys[layer] + cache.keys[layer].token_bytes * at.cells, length);
            ASSERT_LE(at.values[layer] + cache.values[layer].token_bytes * at.cells, length);
          }
        }
      }
      for (const size_t at : changed) state[at] = good[at];
    }
  }
  EXPECT_GT(refused, kMutations);
}

TEST(LlamaStateTest, WhatIsNoPrefixOrDoesNotFitIsRefusedByName) {
  const auto refusal = [](const std::vector<std::byte>& blob,
                          const std::vector<LlamaLayerShape>& shapes) {
    const absl::Status status = ReadLlamaState(blob, shapes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const std::vector<std::byte> good = Small(false).bytes();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(refusal({good.begin(), good.begin() + static_cast<ptrdiff_t>(size)}, kSmall),
                HasSubstr("ends in"))
        << size;
  }
  EXPECT_THAT(refusal(Small(false).Put<uint8_t>(0).bytes(), kSmall), HasSubstr("1 bytes behind"));
  std::vector<std::byte> other = good;
  other[0] = std::byte{0};
  EXPECT_THAT(refusal(other, kSmall), HasSubstr("magic is"));
  other = good;
  other[28] = std::byte{2};  // position 2 of cell 0
  EXPECT_THAT(refusal(other, kSmall), HasSubstr("cell 0 is at position 2"));
  other[28] = std::byte{0};
  EXPECT_THAT(refusal(other, kSmall), HasSubstr("cell 1 is at position 0"));
  EXPECT_THAT(refusal(good, {{.kv_heads = 2, .key_dim = 3, .value_dim = 3}}),
              HasSubstr("row size is 16, expected 12"));
  EXPECT_THAT(refusal(good, {}), HasSubstr("layer count is 1, expected 0"));

  LlamaState state =
      RandomState(quant::GgmlFormat(quant::Codec::kQ8_0), quant::GgmlFormat(quant::Codec::kQ8_0));
  state.values_transposed = true;
  EXPECT_FALSE(WriteLlamaState(state).ok()) << "quantized values are never transposed";
  state = RandomState(quant::MlxAffineFormat(8, 64, quant::Dtype::kF16),
                      quant::RawFormat(quant::Dtype::kF16));
  EXPECT_THAT(std::string(WriteLlamaState(state).status().message()), HasSubstr("no type for"));
}

TEST(LlamaStateTest, ACountThatTheBlobCannotHoldIsRefusedBeforeMemoryIsTaken) {
  std::vector<std::byte> blob = Small(false).bytes();
  const uint32_t cells = 0xffffffff;
  std::memcpy(blob.data() + 24, &cells, sizeof(cells));
  EXPECT_THAT(std::string(ReadLlamaState(blob, kSmall).status().message()),
              HasSubstr("ends in its cells: 4294967295 of at least 8 bytes, "));
}

TEST(LlamaStateTest, DamagedBlobsAreReadOrRefused) {
  std::mt19937 random(14);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> blob = Small(i % 2 == 0).bytes();
    for (uint64_t change = random() % 3 + 1; change > 0; --change) {
      blob[random() % blob.size()] = static_cast<std::byte>(random());
    }
    const absl::StatusOr<LlamaState> state = ReadLlamaState(blob, kSmall);
    refused += !state.ok();
    if (!state.ok()) continue;
    EXPECT_EQ(state->layers[0].key.codes.size(), 32u);
  }
  EXPECT_GT(refused, 5'000);
}

}  // namespace
}  // namespace prefixd::interop
