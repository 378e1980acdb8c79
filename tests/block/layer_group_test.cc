#include "block/layer_group.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/block/samples.h"

namespace prefixd::block {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

LayerGroup Full() { return Hybrid().groups[0]; }
LayerGroup Sliding() { return Hybrid().groups[1]; }
LayerGroup State() { return Hybrid().groups[2]; }

TEST(LayerGroupTest, OneOfEachKindIsValid) {
  for (const LayerGroup& group : {Full(), Sliding(), State()}) {
    EXPECT_TRUE(Validate(group).ok()) << Validate(group);
  }
}

TEST(LayerGroupTest, KeyOnlyAndKeyPrefixGroupsAreValidAndStoreNoValue) {
  LayerGroup group = Full();
  group.ladder = {{Mlx(8), Mlx(8)}};
  const uint64_t with_value = TokenBytesPerLayer(group, 0);
  group.value_source = ValueSource::kKeyPrefix;
  group.value_dim = group.value_prefix_dim = 96;
  EXPECT_TRUE(Validate(group).ok()) << Validate(group);
  EXPECT_EQ(TokenBytesPerLayer(group, 0), with_value - 2u * (64 + 4));
  group.value_source = ValueSource::kNone;
  group.value_dim = group.value_prefix_dim = 0;
  EXPECT_TRUE(Validate(group).ok()) << Validate(group);
}

struct Refusal {
  std::string what;
  LayerGroup base;
  std::function<void(LayerGroup&)> change;
  std::string field, limit;
};

TEST(LayerGroupTest, WhatDoesNotFitIsRefusedWithLayerFieldAndLimit) {
  using G = LayerGroup;
  const std::vector<Refusal> refusals = {
      {"no name", Full(), [](G& g) { g.name = ""; }, "name", "1 to 64"},
      {"long name", Full(), [](G& g) { g.name = std::string(65, 'x'); }, "name", "1 to 64"},
      {"no layers", Full(), [](G& g) { g.layers = {}; }, "layers", "at least one"},
      {"layer twice", Full(),
       [](G& g) {
         g.layers = {2, 2};
       },
       "layers is 2 after 2", "ascend"},
      {"order", Full(),
       [](G& g) {
         g.layers = {3, 2};
       },
       "layers", "ascend"},
      {"far layer", Full(), [](G& g) { g.layers = {4096}; }, "layers is 4096", "below 4096"},
      {"kind", Full(), [](G& g) { g.kind = LayerKind{9}; }, "kind is 9", "1 to 3"},
      {"no heads", Full(), [](G& g) { g.kv_heads = 0; }, "kv_heads is 0", "1 to 1024"},
      {"heads", Full(), [](G& g) { g.kv_heads = 1025; }, "kv_heads is 1025", "1 to 1024"},
      {"no keys", Full(), [](G& g) { g.key_dim = 0; }, "key_dim is 0", "1 to"},
      {"value dim", Full(), [](G& g) { g.value_dim = 0; }, "value_dim is 0", "1 to"},
      {"value source", Full(), [](G& g) { g.value_source = ValueSource{0}; }, "value_source",
       "1 to 3"},
      {"prefix", Full(), [](G& g) { g.value_prefix_dim = 3; }, "value_prefix_dim is 3",
       "must be 0"},
      {"window", Full(), [](G& g) { g.window = 3; }, "window is 3", "must be 0"},
      {"sinks", Full(), [](G& g) { g.sink_tokens = 3; }, "sink_tokens is 3", "must be 0"},
      {"state bytes", Full(), [](G& g) { g.state_bytes = 3; }, "state_bytes is 3", "must be 0"},
      {"no ladder", Full(), [](G& g) { g.ladder = {}; }, "number of formats is 0", "1 to 4"},
      {"five rungs", Full(), [](G& g) { g.ladder.resize(5, g.ladder[0]); },
       "number of formats is 5", "1 to 4"},
      {"rung twice", Full(), [](G& g) { g.ladder[1] = g.ladder[0]; }, "format 1 (",
       "is format 0 too"},
      {"coarse first", Full(), [](G& g) { std::swap(g.ladder[0], g.ladder[1]); }, "format 1 (",
       "finest first"},
      {"key format", Full(), [](G& g) { g.key_dim = 80; }, "): keys: ", "80"},
      {"value format", Full(), [](G& g) { g.value_dim = 96; }, "): values: ", "96"},
      {"codec", Full(), [](G& g) { g.ladder[1].value.codec = quant::Codec{77}; }, "format 1 (",
       "): values: codec 77"},
      {"huge page", Full(),
       [](G& g) {
         g.kv_heads = 1024;
         g.key_dim = 16384;
       },
       "format 0 (", "split the layers"},
      {"no window", Sliding(), [](G& g) { g.window = 0; }, "window is 0", "1 to"},
      {"no state", State(), [](G& g) { g.state_bytes = 0; }, "state_bytes is 0", "1 to"},
      {"state heads", State(), [](G& g) { g.kv_heads = 2; }, "kv_heads is 2", "for kind state"},
      {"state window", State(), [](G& g) { g.window = 2; }, "window is 2", "for kind state"},
      {"state ladder", State(), [](G& g) { g.ladder = {{}}; }, "number of formats is 1",
       "must be 0"},
      {"state source", State(), [](G& g) { g.value_source = ValueSource::kNone; }, "value_source",
       "state"},
      {"none with dim", Full(), [](G& g) { g.value_source = ValueSource::kNone; },
       "value_dim is 64", "must be 0"},
      {"prefix too long", Full(),
       [](G& g) {
         g.value_source = ValueSource::kKeyPrefix;
         g.value_dim = g.value_prefix_dim = 129;
       },
       "value_prefix_dim is 129", "1 to 128"},
      {"two prefixes", Full(),
       [](G& g) {
         g.value_source = ValueSource::kKeyPrefix;
         g.value_prefix_dim = 96;
       },
       "value_dim is 64", "96"},
      {"value format without value", Full(),
       [](G& g) {
         g.value_source = ValueSource::kNone;
         g.value_dim = 0;
       },
       "format 1 (", "repeat the key format"},
  };
  for (const Refusal& refusal : refusals) {
    LayerGroup group = refusal.base;
    refusal.change(group);
    const absl::Status status = Validate(group);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << refusal.what;
    EXPECT_THAT(
        status.ToString(),
        AllOf(HasSubstr(refusal.field), HasSubstr(refusal.limit),
              refusal.field == "name" || refusal.field.starts_with("layers") ? HasSubstr("group")
                                                                             : HasSubstr("layer ")))
        << refusal.what;
  }
}

}  // namespace
}  // namespace prefixd::block
