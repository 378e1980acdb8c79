#include "block/space_identity.h"

#include <functional>
#include <limits>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/bytes.h"
#include "tests/block/samples.h"

namespace prefixd::block {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Change {
  std::string field;
  std::function<void(SpaceIdentity&)> apply;
};

template <typename Enum>
Enum Other(Enum value) {
  return static_cast<Enum>(static_cast<uint8_t>(value) ^ 3);  // 1 <-> 2
}

void AddFormatChanges(std::vector<Change>& changes, const std::string& tensor,
                      std::function<quant::TensorFormat&(SpaceIdentity&)> of) {
  const auto add = [&](const char* field, std::function<void(quant::TensorFormat&)> apply) {
    changes.push_back({tensor + "." + field, [=](SpaceIdentity& s) { apply(of(s)); }});
  };
  using F = quant::TensorFormat;
  add("codec", [](F& f) { f.codec = quant::Codec::kQ8_0; });
  add("bits", [](F& f) { f.bits = 6; });
  add("group_size", [](F& f) { f.group_size = 32; });
  add("rotation", [](F& f) { f.rotation = quant::Rotation::kHadamard; });
  add("layout", [](F& f) { f.layout = quant::Layout::kTiled; });
}

// One change for every field of the identity, of a group and of a format but its dtype.
std::vector<Change> EveryChange() {
  using S = SpaceIdentity;
  std::vector<Change> changes = {
      {"model", [](S& s) { s.model += "x"; }},
      {"weights_digest", [](S& s) { s.weights_digest[31] ^= std::byte{1}; }},
      {"adapter_digest", [](S& s) { s.adapter_digest[0] ^= std::byte{1}; }},
      {"tokenizer_digest", [](S& s) { s.tokenizer_digest[0] ^= std::byte{1}; }},
      {"role", [](S& s) { s.role = Other(s.role); }},
      {"target_digest", [](S& s) { s.target_digest[0] ^= std::byte{1}; }},
      {"rope.theta", [](S& s) { s.rope.theta = 10000; }},
      {"rope.scaling", [](S& s) { s.rope.scaling = "yarn"; }},
      {"rope.scaling_params", [](S& s) { s.rope.scaling_params[3] = 4096; }},
      {"rope.scaling_params", [](S& s) { s.rope.scaling_params.pop_back(); }},
      {"rope.rotary_dims", [](S& s) { s.rope.rotary_dims = 64; }},
      {"rope.pairing", [](S& s) { s.rope.pairing = Other(s.rope.pairing); }},
      {"rope.key_after_rope", [](S& s) { s.rope.key_after_rope = false; }},
      {"tensor_parallel", [](S& s) { s.tensor_parallel = 4; }},
      {"pipeline_parallel", [](S& s) { s.pipeline_parallel = 2; }},
      {"tenant", [](S& s) { s.tenant = "other"; }},
      {"salt", [](S& s) { s.salt = "bob"; }},
      {"block_tokens", [](S& s) { s.block_tokens = 128; }},
      {"groups", [](S& s) { s.groups.pop_back(); }},
      {"layer 0, name", [](S& s) { s.groups[0].name = "x"; }},
      {"layer 1, kind", [](S& s) { s.groups[1].kind = LayerKind::kFull; }},
      {"layer 0, layers", [](S& s) { s.groups[0].layers[1] = 7; }},
      {"layer 0, kv_heads", [](S& s) { s.groups[0].kv_heads = 4; }},
      {"layer 0, key_dim", [](S& s) { s.groups[0].key_dim = 64; }},
      {"layer 0, value_dim", [](S& s) { s.groups[0].value_dim = 128; }},
      {"layer 0, value_source", [](S& s) { s.groups[0].value_source = ValueSource::kNone; }},
      {"layer 0, value_prefix_dim", [](S& s) { s.groups[0].value_prefix_dim = 1; }},
      {"layer 0, tensor_rank", [](S& s) { s.groups[0].tensor_rank = 1; }},
      {"layer 0, pipeline_rank", [](S& s) { s.groups[0].pipeline_rank = 1; }},
      {"layer 1, window", [](S& s) { s.groups[1].window = 1024; }},
      {"layer 1, sink_tokens", [](S& s) { s.groups[1].sink_tokens = 0; }},
      {"layer 3, state_bytes", [](S& s) { s.groups[2].state_bytes = 8192; }},
      {"layer 0, formats", [](S& s) { s.groups[0].ladder.pop_back(); }},
      {"shared_layers",
       [](S& s) {
         s.shared_layers = {{20, 0}};
       }},
  };
  AddFormatChanges(changes, "layer 0, format 1, key",
                   [](S& s) -> quant::TensorFormat& { return s.groups[0].ladder[1].key; });
  AddFormatChanges(changes, "layer 0, format 1, value",
                   [](S& s) -> quant::TensorFormat& { return s.groups[0].ladder[1].value; });
  return changes;
}

TEST(SpaceIdentityTest, IdIsTheGoldenVector) {
  // The constants come from golden_hashes.py, which shares no code with the room.
  EXPECT_EQ(Encode(Hybrid()).size(), 490u);
  EXPECT_EQ(base::ToHex(IdOf(Hybrid())),
            "be50199ea474d0914378c73a9dac02122f472a282cc35adb97104d8ff28bd70f");
}

TEST(SpaceIdentityTest, EveryChangedFieldIsAnotherSpaceAndIsNamedAlone) {
  std::set<SpaceId> ids = {IdOf(Hybrid())};
  for (const Change& change : EveryChange()) {
    SpaceIdentity changed = Hybrid();
    change.apply(changed);
    EXPECT_THAT(DifferingFields(Hybrid(), changed), ElementsAre(change.field));
    EXPECT_THAT(DifferingFields(changed, Hybrid()), ElementsAre(change.field));
    EXPECT_FALSE(changed == Hybrid()) << change.field;
    EXPECT_TRUE(ids.insert(IdOf(changed)).second) << change.field;
  }
}

TEST(SpaceIdentityTest, ADtypeIsEncodedTwiceAndBothMustAgree) {
  SpaceIdentity changed = Hybrid();
  changed.groups[0].ladder[1].key.dtype = quant::Dtype::kBf16;
  EXPECT_THAT(DifferingFields(Hybrid(), changed),
              ElementsAre("layer 0, format 1, key.dtype", "layer 0, format 1, key.scale_dtype"));
  EXPECT_NE(IdOf(changed), IdOf(Hybrid()));
  const std::string one = Encode(Hybrid()), other = Encode(changed);
  int places = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    if (one[i] == other[i]) continue;
    std::string mixed = one;
    mixed[i] = other[i];
    EXPECT_TRUE(absl::IsDataLoss(DecodeSpaceIdentity(mixed).status()));
    ++places;
  }
  EXPECT_EQ(places, 2);
}

TEST(SpaceIdentityTest, WhichLayerReadsWhosePagesIsPartOfIt) {
  SpaceIdentity sharing = Hybrid();
  const uint32_t reads = sharing.groups[0].layers[0];
  sharing.shared_layers = {{100, reads}, {101, sharing.groups[1].layers[0]}};
  ASSERT_TRUE(NormalizeAndValidate(&sharing).ok()) << NormalizeAndValidate(&sharing);
  const auto decoded = DecodeSpaceIdentity(Encode(sharing));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, sharing);
  SpaceIdentity other = sharing;
  other.shared_layers[1].reads = reads;
  EXPECT_THAT(DifferingFields(sharing, other), ElementsAre("shared_layers[1].reads"));
  EXPECT_NE(IdOf(other), IdOf(sharing));
  const auto refused = [](SpaceIdentity identity, std::vector<SharedLayer> shared) {
    identity.shared_layers = std::move(shared);
    return std::string(NormalizeAndValidate(&identity).message());
  };
  EXPECT_THAT(refused(Hybrid(), {{reads, reads}}), HasSubstr("a layer of a group"));
  EXPECT_THAT(refused(Hybrid(), {{100, 99}}), HasSubstr("reads is 99"));
  EXPECT_THAT(refused(Hybrid(), {{100, Hybrid().groups[2].layers[0]}}),
              HasSubstr("must be a layer of a full or a sliding group"));
  EXPECT_THAT(refused(Hybrid(), {{101, reads}, {100, reads}}), HasSubstr("layer is 100"));
  EXPECT_THAT(refused(Hybrid(), {{kMaxLayers, reads}}), HasSubstr("4096"));
}

TEST(SpaceIdentityTest, SeveralDifferencesAreNamedInOrder) {
  SpaceIdentity changed = Hybrid();
  changed.groups[1].ladder[0].key = Mlx(6, 64);
  changed.salt = "";
  EXPECT_THAT(DifferingFields(Hybrid(), changed),
              ElementsAre("salt", "layer 1, format 0, key.bits"));
  EXPECT_THAT(DifferingFields(Hybrid(), Hybrid()), IsEmpty());
}

// Length framing: moving a character from one string to the next is another space.
TEST(SpaceIdentityTest, NeighbouringStringsDoNotRunTogether) {
  SpaceIdentity a = Hybrid(), b = Hybrid();
  a.tenant = "ab";
  a.salt = "c";
  b.tenant = "a";
  b.salt = "bc";
  EXPECT_NE(IdOf(a), IdOf(b));
}

TEST(SpaceIdentityTest, NormalizeFillsTheDefaultBlockTokensAndDropsNegativeZero) {
  SpaceIdentity given = Hybrid();
  given.block_tokens = 0;
  given.rope.scaling_params[1] = -0.0;
  SpaceIdentity plain = Hybrid();
  plain.rope.scaling_params[1] = 0.0;
  ASSERT_TRUE(NormalizeAndValidate(&given).ok());
  EXPECT_EQ(given.block_tokens, kDefaultBlockTokens);
  EXPECT_EQ(IdOf(given), IdOf(plain));
}

TEST(SpaceIdentityTest, WhatIsOutOfRangeIsRefusedByField) {
  using S = SpaceIdentity;
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Change> refused = {
      {"model is 0 bytes long", [](S& s) { s.model = ""; }},
      {"model is 1025 bytes long", [](S& s) { s.model = std::string(1025, 'm'); }},
      {"tenant", [](S& s) { s.tenant = std::string(257, 't'); }},
      {"salt", [](S& s) { s.salt = std::string(257, 't'); }},
      {"role is 3", [](S& s) { s.role = Role{3}; }},
      {"target_digest", [](S& s) { s.role = Role::kTarget; }},
      {"rope.theta", [=](S& s) { s.rope.theta = nan; }},
      {"rope.theta", [=](S& s) { s.rope.theta = infinity; }},
      {"rope.theta is -1", [](S& s) { s.rope.theta = -1; }},
      {"rope.theta is 0", [](S& s) { s.rope.theta = 0; }},
      {"rope.scaling ", [](S& s) { s.rope.scaling = std::string(65, 's'); }},
      {"rope.scaling_params is 4", [](S& s) { s.rope.scaling = ""; }},
      {"rope.scaling_params is 1025", [](S& s) { s.rope.scaling_params.resize(1025); }},
      {"rope.scaling_params", [=](S& s) { s.rope.scaling_params[0] = nan; }},
      {"rope.rotary_dims is 63", [](S& s) { s.rope.rotary_dims = 63; }},
      {"rope.rotary_dims", [](S& s) { s.rope.rotary_dims = 1 << 20; }},
      {"rope.pairing", [](S& s) { s.rope.pairing = RopePairing{0}; }},
      {"tensor_parallel is 0", [](S& s) { s.tensor_parallel = 0; }},
      {"pipeline_parallel is 1025", [](S& s) { s.pipeline_parallel = 1025; }},
      {"block_tokens is 48", [](S& s) { s.block_tokens = 48; }},
      {"block_tokens is 256", [](S& s) { s.block_tokens = 256; }},
      {"groups is 0", [](S& s) { s.groups = {}; }},
      {"groups is 65", [](S& s) { s.groups.resize(65, s.groups[0]); }},
      {"layer 0: kv_heads is 0", [](S& s) { s.groups[0].kv_heads = 0; }},
      {"layer 0: tensor_rank is 2", [](S& s) { s.groups[0].tensor_rank = 2; }},
      {"layer 0: pipeline_rank is 1", [](S& s) { s.groups[0].pipeline_rank = 1; }},
      {"layer 2 is given twice",
       [](S& s) {
         s.groups[1].layers = {1, 2};
       }},
      {"layer 1: its group's name is used twice", [](S& s) { s.groups[1].name = "full.0"; }},
  };
  for (const Change& change : refused) {
    SpaceIdentity identity = Hybrid();
    change.apply(identity);
    const absl::Status status = NormalizeAndValidate(&identity);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << change.field;
    EXPECT_THAT(status.ToString(), HasSubstr(change.field));
  }
}

TEST(SpaceIdentityTest, RanksOfOneModelHoldTheSameLayersInOneSpace) {
  SpaceIdentity identity = Hybrid();
  const std::vector<LayerGroup> rank0 = identity.groups;
  for (LayerGroup group : rank0) {
    group.tensor_rank = 1;
    identity.groups.push_back(group);
  }
  EXPECT_TRUE(NormalizeAndValidate(&identity).ok());
  EXPECT_EQ(PayloadBytesPerToken(identity), 2 * PayloadBytesPerToken(Hybrid()));
}

TEST(SpaceIdentityTest, DecodeGivesBackWhatWasEncoded) {
  for (SpaceIdentity identity : {Hybrid(), ModelOf(kQwen06B, {Mlx(8), Mlx(4)})}) {
    ASSERT_TRUE(NormalizeAndValidate(&identity).ok());
    const absl::StatusOr<SpaceIdentity> decoded = DecodeSpaceIdentity(Encode(identity));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, identity);
    EXPECT_THAT(DifferingFields(*decoded, identity), IsEmpty());
  }
}

TEST(SpaceIdentityTest, EveryTruncationAndEveryTailIsDataLoss) {
  const std::string encoded = Encode(Hybrid());
  for (size_t length = 0; length < encoded.size(); ++length) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeSpaceIdentity(encoded.substr(0, length)).status()))
        << length;
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodeSpaceIdentity(encoded + '\0').status()));
}

// Damage is DataLoss or another, valid identity whose encoding is the damaged bytes; never more.
TEST(SpaceIdentityTest, DamagedEncodingsAreDataLossOrExactlyAnotherIdentity) {
  const std::string encoded = Encode(Hybrid());
  const auto check = [&](const std::string& damaged) {
    const absl::StatusOr<SpaceIdentity> decoded = DecodeSpaceIdentity(damaged);
    if (decoded.ok()) {
      EXPECT_EQ(Encode(*decoded), damaged);
    } else {
      EXPECT_TRUE(absl::IsDataLoss(decoded.status()));
    }
    return decoded.ok();
  };
  for (size_t i = 0; i < encoded.size(); ++i) {
    for (int value = 0; value < 256; ++value) {
      std::string damaged = encoded;
      damaged[i] = static_cast<char>(value);
      check(damaged);
    }
  }
  std::mt19937 random(17);
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = encoded;
    for (size_t n = 1 + random() % 8; n > 0; --n) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    if (random() % 2 == 0) damaged.resize(random() % damaged.size());
    check(damaged);
  }
  EXPECT_TRUE(check(encoded));
}

TEST(SpaceIdentityTest, AnotherVersionIsDataLoss) {
  std::string encoded = Encode(Hybrid());
  encoded[0] = 2;
  EXPECT_TRUE(absl::IsDataLoss(DecodeSpaceIdentity(encoded).status()));
}

// A2 seed-story: 60,928 bytes a token for Qwen3-0.6B at 8 bits; 447 tokens are 27,234,816 bytes.
TEST(SpaceIdentityTest, PayloadBytesPerTokenAreThoseOfTheReferenceGeometries) {
  const quant::TensorFormat f16 = quant::RawFormat(quant::Dtype::kF16);
  const auto bytes = [](const Geometry& geometry, const quant::TensorFormat& key,
                        const quant::TensorFormat& value) {
    return PayloadBytesPerToken(ModelOf(geometry, {key, value}));
  };
  EXPECT_EQ(bytes(kQwen06B, Mlx(8), Mlx(8)), 60'928u);
  EXPECT_EQ(bytes(kQwen06B, Mlx(8), Mlx(4)), 46'592u);
  EXPECT_EQ(bytes(kQwen06B, Mlx(4), Mlx(4)), 32'256u);
  EXPECT_EQ(bytes(kQwen06B, f16, f16), 114'688u);
  EXPECT_EQ(bytes(kLlama8B, Mlx(8), Mlx(8)), 69'632u);
  EXPECT_EQ(bytes(kLlama8B, Mlx(8), Mlx(4)), 53'248u);
  EXPECT_EQ(bytes(kLlama8B, Mlx(4), Mlx(4)), 36'864u);
  EXPECT_EQ(bytes(kLlama8B, f16, f16), 131'072u);
  EXPECT_EQ(447 * bytes(kQwen06B, Mlx(8), Mlx(8)), 27'234'816u);
}

}  // namespace
}  // namespace prefixd::block
