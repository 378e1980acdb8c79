// Sizes that the systems prefixd grew out of reported, as our formula gives them; and descriptors
// that differ a little, which must never be taken for each other.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

#include "absl/container/flat_hash_set.h"

#include "tests/block/samples.h"

namespace prefixd::block {
namespace {

const quant::TensorFormat kF16 = quant::RawFormat(quant::Dtype::kF16);
constexpr double kMebi = 1 << 20, kGibi = 1 << 30;

uint64_t BytesOf(const Geometry& geometry, const quant::TensorFormat& key,
                 const quant::TensorFormat& value) {
  return PayloadBytesPerToken(ModelOf(geometry, {key, value}));
}

// S1-17
TEST(FeatureNumbersTest, StoresOfTheReplayTakeWhatTheirLogSaid) {
  const auto raw = static_cast<double>(BytesOf(kQwen06B, kF16, kF16));
  const auto eight = static_cast<double>(BytesOf(kQwen06B, Mlx(8), Mlx(8)));
  struct Store {
    int tokens;
    double raw, eight;  // MiB
  };
  for (const Store& s : {Store{53, 5.80, 3.08}, Store{253, 27.67, 14.70}, Store{280, 30.62, 16.27},
                         Store{430, 47.03, 24.99}}) {
    EXPECT_NEAR(s.tokens * raw / kMebi, s.raw, 0.006) << s.tokens;
    EXPECT_NEAR(s.tokens * eight / kMebi, s.eight, 0.006) << s.tokens;
  }
}

// S1-18
TEST(FeatureNumbersTest, MemoryAfterEachRequestOfTheReplayIsUnderItsLogAndSharesWhatIsCommon) {
  const uint64_t raw = BytesOf(kQwen06B, kF16, kF16), eight = BytesOf(kQwen06B, Mlx(8), Mlx(8));
  EXPECT_EQ(306 * eight, 18'643'968u);
  EXPECT_EQ(306 * raw, 35'094'528u);
  EXPECT_EQ(544 * eight, 33'144'832u);
  EXPECT_EQ(544 * raw, 62'390'272u);
  EXPECT_EQ(1016 * eight, 61'902'848u) << "with oversized buffers";
  EXPECT_EQ(447 * eight, 27'234'816u) << "what prefixd holds";
}

// S1-26, S1-35
TEST(FeatureNumbersTest, EightAndFourBitsAreThreeAndAHalfAndSixTimesSmallerThanFloats) {
  const auto f32 = [](uint8_t bits) { return Mlx(bits, 64, quant::Dtype::kF32); };
  const Geometry bench = {32, 32, 128};
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF32);
  const auto mib = [&](const quant::TensorFormat& format) {
    return static_cast<double>(512 * BytesOf(bench, format, format)) / kMebi;
  };
  EXPECT_EQ(mib(raw), 512);
  EXPECT_EQ(mib(f32(8)), 144);
  EXPECT_EQ(mib(f32(4)), 80);
  const auto half = static_cast<double>(BytesOf(bench, kF16, kF16));
  EXPECT_NEAR(half / static_cast<double>(BytesOf(bench, Mlx(8), Mlx(8))), 1.882, 0.001);
  EXPECT_NEAR(half / static_cast<double>(BytesOf(bench, Mlx(4), Mlx(4))), 3.556, 0.001);
}

// S2-04, S2-18, S2-19
TEST(FeatureNumbersTest, KeysOfEightAndValuesOfFourBitsSaveFiftyNinePercent) {
  const auto raw = static_cast<double>(BytesOf(kLlama8B, kF16, kF16));
  const auto split = static_cast<double>(BytesOf(kLlama8B, Mlx(8), Mlx(4)));
  const auto four = static_cast<double>(BytesOf(kLlama8B, Mlx(4), Mlx(4)));
  EXPECT_EQ(split, 53'248);
  EXPECT_EQ(1024 * raw / kMebi, 128);
  EXPECT_EQ(1024 * split / kMebi, 52);
  EXPECT_EQ(1024 * four / kMebi, 36);
  EXPECT_NEAR(1 - split / raw, 0.594, 0.0005);
  EXPECT_NEAR(1 - four / raw, 0.719, 0.0005);
  EXPECT_EQ(131'072 * raw / kGibi, 16);
  EXPECT_EQ(131'072 * split / kGibi, 6.5);
  EXPECT_EQ(131'072 * four / kGibi, 4.5);
}

// S2-21, S2-22: 12 of 48 layers attend, with two heads of 256.
TEST(FeatureNumbersTest, AHybridOfTwelveAttentionLayersTakesThreeGiBOrOnePointTwo) {
  const Geometry attention = {12, 2, 256};
  const uint64_t raw = BytesOf(attention, kF16, kF16);
  const uint64_t split = BytesOf(attention, Mlx(8), Mlx(4));
  EXPECT_EQ(raw, 24'576u);
  EXPECT_EQ(split, 9'984u);
  EXPECT_EQ(131'072 * raw / (uint64_t{1} << 30), 3u);
  EXPECT_NEAR(131'072 * static_cast<double>(split) / kGibi, 1.22, 0.005);
}

// S4-01, S4-03: 16 attending layers, four heads of 256.
TEST(FeatureNumbersTest, FiftyThousandTokensTakeThreeGiBOrPointEightFive) {
  const Geometry attention = {16, 4, 256};
  const auto raw = static_cast<double>(BytesOf(attention, kF16, kF16));
  EXPECT_EQ(raw, 65'536);
  EXPECT_NEAR(50'000 * raw / kGibi, 3.05, 0.005);
  const auto q4 = static_cast<double>(BytesOf(attention, quant::GgmlFormat(quant::Codec::kQ4_0),
                                              quant::GgmlFormat(quant::Codec::kQ4_0)));
  EXPECT_NEAR(raw / q4, 3.556, 0.001);
  EXPECT_NEAR(50'000 * q4 / kGibi, 0.858, 0.001);
}

// A change of one place of a descriptor, by chance, and the field that says so.
struct Mutation {
  std::string field;
  std::function<void(SpaceIdentity&, std::mt19937_64&)> apply;
};

void Flip(base::Digest256& digest, std::mt19937_64& random) {
  digest[random() % digest.size()] ^= static_cast<std::byte>(1 + random() % 255);
}

uint32_t OtherThan(uint32_t value, uint32_t limit, std::mt19937_64& random) {
  const auto other = static_cast<uint32_t>(1 + random() % limit);
  return other == value ? other + 1 : other;
}

std::vector<Mutation> Mutations() {
  using S = SpaceIdentity;
  using R = std::mt19937_64;
  std::vector<Mutation> all = {
      {"model", [](S& s, R& r) { s.model += std::to_string(r()); }},
      {"weights_digest", [](S& s, R& r) { Flip(s.weights_digest, r); }},
      {"adapter_digest", [](S& s, R& r) { Flip(s.adapter_digest, r); }},
      {"tokenizer_digest", [](S& s, R& r) { Flip(s.tokenizer_digest, r); }},
      {"target_digest", [](S& s, R& r) { Flip(s.target_digest, r); }},
      {"rope.theta", [](S& s, R& r) { s.rope.theta += 1 + static_cast<double>(r() % 1'000'000); }},
      {"rope.scaling_params",
       [](S& s, R& r) {
         s.rope.scaling_params[r() % 4] += 1e-9 * static_cast<double>(1 + r() % 1'000'000'000'000);
       }},
      {"rope.rotary_dims",
       [](S& s, R& r) { s.rope.rotary_dims = OtherThan(s.rope.rotary_dims, 256, r); }},
      {"tensor_parallel",
       [](S& s, R& r) { s.tensor_parallel = OtherThan(s.tensor_parallel, 1000, r); }},
      {"pipeline_parallel",
       [](S& s, R& r) { s.pipeline_parallel = OtherThan(s.pipeline_parallel, 1000, r); }},
      {"tenant",
       [](S& s, R& r) {
         s.tenant += static_cast<char>('a' + r() % 26);
         s.tenant += std::to_string(r() % 1000);
       }},
      {"salt", [](S& s, R& r) { s.salt += std::to_string(r()); }}};
  for (size_t g = 0; g < 3; ++g) {
    const std::string name = "layer " + std::to_string(Hybrid().groups[g].layers.front()) + ", ";
    const auto add = [&](const char* field, auto change) {
      all.push_back({name + field, [g, change](S& s, R& r) { change(s.groups[g], r); }});
    };
    add("name", [](LayerGroup& l, R& r) { l.name += std::to_string(r() % 1'000'000); });
    add("layers",
        [](LayerGroup& l, R& r) { l.layers.back() = OtherThan(l.layers.back(), 1'000'000, r); });
    if (g == 2) {
      add("state_bytes",
          [](LayerGroup& l, R& r) { l.state_bytes += 1 + static_cast<uint32_t>(r() % 1'000'000); });
      continue;
    }
    add("kv_heads", [](LayerGroup& l, R& r) { l.kv_heads = OtherThan(l.kv_heads, 1000, r); });
    add("key_dim", [](LayerGroup& l, R& r) { l.key_dim = OtherThan(l.key_dim, 10'000, r); });
    add("value_dim", [](LayerGroup& l, R& r) { l.value_dim = OtherThan(l.value_dim, 10'000, r); });
    if (g == 1) {
      add("window", [](LayerGroup& l, R& r) { l.window = OtherThan(l.window, 1'000'000, r); });
      add("sink_tokens",
          [](LayerGroup& l, R& r) { l.sink_tokens = OtherThan(l.sink_tokens, 100'000, r); });
    }
    const std::string rung = "format 0, ";
    for (const bool key : {true, false}) {
      const std::string tensor = rung + (key ? "key." : "value.");
      const auto of = [key](LayerGroup& l) -> quant::TensorFormat& {
        return key ? l.ladder[0].key : l.ladder[0].value;
      };
      all.push_back({name + tensor + "bits", [g, of](S& s, R& r) {
                       quant::TensorFormat& f = of(s.groups[g]);
                       f.bits = static_cast<uint8_t>(OtherThan(f.bits, 200, r));
                     }});
      all.push_back({name + tensor + "group_size", [g, of](S& s, R& r) {
                       quant::TensorFormat& f = of(s.groups[g]);
                       f.group_size = static_cast<uint16_t>(OtherThan(f.group_size, 60'000, r));
                     }});
    }
  }
  return all;
}

// S4-18. A hit of another space would be wrong bytes: no two descriptors that differ have one id,
// and what differs is told.
TEST(MutatedDescriptorsTest, OfAHundredThousandNoneIsTakenForAnotherAndEachIsExplained) {
  const std::vector<Mutation> mutations = Mutations();
  std::mt19937_64 random(20261122);
  absl::flat_hash_set<std::string> encodings = {};
  std::set<SpaceId> ids = {IdOf(Hybrid())};
  int seen = 0;
  while (seen < 100'000) {
    SpaceIdentity changed = Hybrid();
    const Mutation& mutation = mutations[random() % mutations.size()];
    mutation.apply(changed, random);
    const std::vector<std::string> fields = DifferingFields(Hybrid(), changed);
    ASSERT_EQ(fields, std::vector<std::string>{mutation.field});
    ++seen;
    ASSERT_NE(IdOf(changed), IdOf(Hybrid())) << mutation.field;
    // The same mutation may come twice; two encodings never share an id.
    const std::string encoded = Encode(changed);
    const bool fresh = encodings.insert(encoded).second;
    ASSERT_EQ(ids.insert(IdOf(changed)).second, fresh) << mutation.field;
  }
  EXPECT_GT(ids.size(), 60'000u) << "most of them differ from each other too";
}

}  // namespace
}  // namespace prefixd::block
