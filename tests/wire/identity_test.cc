#include "wire/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "google/protobuf/stubs/logging.h"

#include "tests/wire/random_values.h"

namespace prefixd::wire {
namespace {

using ::testing::HasSubstr;

TEST(IdentityTest, RandomIdentitiesComeBackAsTheyWent) {
  testing::RandomValues random(7);
  for (int i = 0; i < 2000; ++i) {
    const block::SpaceIdentity identity = random.Identity();
    v1::SpaceIdentity travelled;
    ASSERT_TRUE(travelled.ParseFromString(ToProto(identity).SerializeAsString()));
    const absl::StatusOr<block::SpaceIdentity> back = FromProto(travelled);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, identity) << block::DifferingFields(*back, identity).front();
  }
}

TEST(IdentityTest, TheTenantNeverTravels) {
  block::SpaceIdentity identity = testing::RandomValues(1).Identity();
  identity.tenant = "somebody-else";
  EXPECT_THAT(ToProto(identity).SerializeAsString(), ::testing::Not(HasSubstr("somebody-else")));
  EXPECT_EQ(FromProto(ToProto(identity))->tenant, "");
}

TEST(IdentityTest, RanksOfZeroMeanOneShard) {
  v1::SpaceIdentity proto;
  const block::SpaceIdentity identity = *FromProto(proto);
  EXPECT_EQ(identity.tensor_parallel, 1u);
  EXPECT_EQ(identity.pipeline_parallel, 1u);
}

// What comes off the wire with flipped bytes is refused or taken, never a crash, and what is taken
// is taken whole.
TEST(IdentityTest, FlippedBytesAreRefusedOrTakenWhole) {
  google::protobuf::SetLogHandler(nullptr);  // it would print every text that is no UTF-8
  testing::RandomValues random(11);
  int taken = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = ToProto(random.Identity()).SerializeAsString();
    for (int flips = 0; flips < 3; ++flips) {
      bytes[random.Below(static_cast<uint32_t>(bytes.size()))] =
          static_cast<char>(random.Below(256));
    }
    v1::SpaceIdentity proto;
    if (!proto.ParseFromString(bytes)) continue;
    const absl::StatusOr<block::SpaceIdentity> identity = FromProto(proto);
    if (!identity.ok()) {
      EXPECT_EQ(identity.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ++taken;
    EXPECT_EQ(ToProto(*FromProto(ToProto(*identity))).SerializeAsString(),
              ToProto(*identity).SerializeAsString());
  }
  EXPECT_GT(taken, 50);
}

struct BadField {
  const char* name;
  std::function<void(v1::SpaceIdentity*)> spoil;
  const char* says;
};

// A5: a wrong length, enum or count names its field.
TEST(IdentityTest, EveryBadFieldIsNamed) {
  const auto group = [](v1::SpaceIdentity* proto) { return proto->mutable_groups(0); };
  const auto key = [=](v1::SpaceIdentity* proto) {
    return group(proto)->mutable_ladder(0)->mutable_key();
  };
  const std::vector<BadField> cases = {
      {"weights", [](auto* p) { p->set_weights_digest("short"); },
       "weights_digest has 5 bytes, wants 32 or none"},
      {"adapter", [](auto* p) { p->set_adapter_digest(std::string(33, 'x')); },
       "adapter_digest has 33 bytes"},
      {"tokenizer", [](auto* p) { p->set_tokenizer_digest("x"); }, "tokenizer_digest has 1 bytes"},
      {"target", [](auto* p) { p->set_target_digest("x"); }, "target_digest has 1 bytes"},
      {"kind", [=](auto* p) { group(p)->clear_kind(); }, "groups[0].kind is 0 (unspecified)"},
      {"new kind", [=](auto* p) { group(p)->set_kind(static_cast<v1::LayerKind>(9)); },
       "groups[0].kind is 9"},
      {"source", [=](auto* p) { group(p)->clear_value_source(); }, "groups[0].value_source is 0"},
      {"codec", [=](auto* p) { key(p)->clear_codec(); }, "groups[0].ladder[0].key.codec is 0"},
      {"dtype", [=](auto* p) { key(p)->clear_dtype(); }, "key.dtype is 0"},
      {"scale", [=](auto* p) { key(p)->clear_scale_dtype(); }, "key.scale_dtype is 0"},
      {"another scale",
       [=](auto* p) {
         key(p)->set_dtype(v1::DTYPE_F16);
         key(p)->set_scale_dtype(v1::DTYPE_F32);
       },
       "key.scale_dtype is 1, accepted: 2, the dtype"},
      {"rotation", [=](auto* p) { key(p)->clear_rotation(); }, "key.rotation is 0"},
      {"layout", [=](auto* p) { key(p)->clear_layout(); }, "key.layout is 0"},
      {"bits", [=](auto* p) { key(p)->set_bits(256); }, "key.bits is 256, at most 255"},
      {"group size", [=](auto* p) { key(p)->set_group_size(65536); },
       "key.group_size is 65536, at most 65535"},
      {"value", [=](auto* p) { group(p)->mutable_ladder(0)->clear_value(); },
       "ladder[0].value.codec is 0"},
      {"ladder",
       [=](auto* p) {
         while (group(p)->ladder_size() < 5) *group(p)->add_ladder() = group(p)->ladder(0);
       },
       "groups[0].ladder has 5 entries, at most 4"},
      {"layers",
       [=](auto* p) {
         for (uint32_t i = 0; i < 4097; ++i) group(p)->add_layers(i);
       },
       "groups[0].layers has"},
      {"groups",
       [=](auto* p) {
         while (p->groups_size() < 65) *p->add_groups() = p->groups(0);
       },
       "groups has 65 entries, at most 64"},
      {"scaling",
       [](auto* p) {
         for (int i = 0; i < 1030; ++i) p->mutable_rope()->add_scaling_params(1);
       },
       "scaling_params has"},
  };
  testing::RandomValues random(3);
  for (const BadField& bad : cases) {
    block::SpaceIdentity identity = random.Identity();
    identity.groups.assign(1, random.Group());
    identity.groups[0].ladder.assign(1, {random.Format(), random.Format()});
    v1::SpaceIdentity proto = ToProto(identity);
    bad.spoil(&proto);
    const absl::Status status = FromProto(proto).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.says)) << bad.name;
  }
}

}  // namespace
}  // namespace prefixd::wire
