// Layers that do not keep keys and values of their own: MLA, whose values are a prefix of its keys;
// keys alone; and layers that attend on another one's. Stored once, read back from RAM and SSD.
#include <algorithm>
#include <utility>

#include "tests/client/restart.h"

namespace prefixd {
namespace {

constexpr uint32_t kMla = 0, kKeys = 1, kFull = 2, kSliding = 3;
constexpr uint32_t kReadsFull = 4, kReadsSliding = 5, kReadsMla = 6;

SpaceSpec Shapes() {
  SpaceSpec spec{.model = "shapes", .weights_digest = {std::byte{3}}};
  const KvFormat eight = MlxAffine(8, 64, Dtype::kF16);
  const LayerSpec full{.kv_heads = 2, .key_dim = 64, .value_dim = 128, .formats = {eight}};
  LayerSpec mla{.kv_heads = 1, .key_dim = 576, .value_dim = 512, .formats = {eight}};
  mla.values = ValueSource::kKeyPrefix;
  LayerSpec keys{.kv_heads = 3, .key_dim = 64, .formats = {Raw(Dtype::kBf16)}};
  keys.values = ValueSource::kNone;
  LayerSpec sliding = full;
  sliding.kind = LayerKind::kSliding;
  sliding.window = 100;
  spec.layers = {mla,
                 keys,
                 full,
                 sliding,
                 {.reads_layer = kFull},
                 {.reads_layer = kSliding},
                 {.reads_layer = kMla}};
  return spec;
}

TEST(LayerSpecTest, AnImpossibleFormatIsRefusedByItsLayerAndFormat) {
  SpaceSpec spec = Shapes();
  spec.layers[kFull].formats.push_back(MlxAffine(4, 128, Dtype::kF16));
  Client client({.address = "unix:///nonexistent/prefixd.sock"});
  const Result<Space> space = client.OpenSpace(spec);
  EXPECT_EQ(space.status.code, StatusCode::kInvalidArgument);
  EXPECT_NE(space.status.message.find("layer 2, format 1 (mlx_affine/4/128/f16): keys: group_size "
                                      "128"),
            std::string::npos)
      << space.status.message;
}

class LayerShapesTest : public RestartTest {
 protected:
  LayerShapesTest() { Start(); }
  void Start() {
    StartDaemon();
    space_ = client_->OpenSpace(spec_);
    ASSERT_TRUE(space_.ok()) << space_.status.message;
  }
  void Restart() {
    space_ = {};
    StopDaemon();
    Start();
  }
  bool Owns(uint32_t layer) const { return spec_.layers[layer].reads_layer < 0; }
  // Layers that share are passed over; values only where they are stored.
  void Compute(Sequence& seq, uint32_t begin, uint32_t end) {
    for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
      if (!Owns(layer)) continue;
      const LayerSpec& l = spec_.layers[layer];
      const auto k = Tensor(tokens_, begin, end - begin, layer, l.kv_heads, l.key_dim, true);
      const auto v = Tensor(tokens_, begin, end - begin, layer, l.kv_heads, l.value_dim, false);
      const bool values = l.values == ValueSource::kStored;
      const Status put = seq.Append(static_cast<int>(layer), begin, end - begin, {.data = k.data()},
                                    {.data = values ? v.data() : nullptr});
      ASSERT_TRUE(put.ok()) << put.message;
    }
  }
  // Packed K and V of a layer, block by block, by whichever index of it.
  template <typename Pages>
  std::vector<Packed> BlocksOf(Pages& pages, uint32_t layer) {
    const LayerSpec& said = spec_.layers[layer];
    const LayerSpec& l = Owns(layer) ? said : spec_.layers[static_cast<size_t>(said.reads_layer)];
    std::vector<Packed> all;
    uint32_t begin = 0;
    for (const BlockTableEntry& block : pages.block_table(static_cast<int>(layer))) {
      if (block.units != nullptr) {
        Packed k(l.formats[0].key, l.kv_heads, l.key_dim, block.tokens);
        Packed v(l.formats[0].value, l.kv_heads, l.values == ValueSource::kStored ? l.value_dim : 0,
                 block.tokens);
        const Status got =
            pages.Gather(static_cast<int>(layer), begin, block.tokens, k.view(), v.view());
        EXPECT_TRUE(got.ok()) << got.message;
        all.push_back(std::move(k));
        if (l.values == ValueSource::kStored) all.push_back(std::move(v));
      }
      begin += block.tokens;
    }
    return all;
  }

  const SpaceSpec spec_ = Shapes();
  Result<Space> space_;
  const std::vector<uint32_t> tokens_ = Tokens(300, 1);
};

TEST_P(LayerShapesTest, EveryShapeComesBackAndIsStoredOnce) {
  std::vector<std::vector<Packed>> computed;
  {
    Sequence seq = space_.value().Begin(tokens_);
    Compute(seq, 0, 300);
    for (uint32_t layer = 0; layer < 7; ++layer) computed.push_back(BlocksOf(seq, layer));
    const Result<CommitInfo> stored = seq.Commit({.sequence_end = true});
    ASSERT_TRUE(stored.ok()) << stored.status.message;
    EXPECT_EQ(stored.value().stored_tokens, 300u);
  }
  // 8 bits and two halves for 64 of them; MLA 576, keys alone 3 x 64 of 2 bytes, two of 2 x 192.
  const uint64_t row = (576 + 2 * 2 * 192) / 64 * 68 + 3 * 64 * 2;
  EXPECT_EQ(space_.value().payload_bytes_per_token(), row);
  EXPECT_EQ(daemon_->space().ram_payload_bytes, 300 * row);
  for (const bool restarted : {false, true}) {
    if (restarted) Restart();
    Sequence seq = space_.value().Begin(tokens_);
    ASSERT_EQ(seq.WaitAll(), 300u) << seq.match().why_shorter;
    for (uint32_t layer = 0; layer < 7; ++layer) {
      SCOPED_TRACE(layer);
      // Of the sliding layer what its window needs.
      const std::vector<Packed> back = BlocksOf(seq, layer);
      ASSERT_GE(computed[layer].size(), back.size());
      EXPECT_TRUE(std::equal(back.rbegin(), back.rend(), computed[layer].rbegin()));
    }
  }
}

TEST_P(LayerShapesTest, ALayerThatSharesIsAViewOfTheOneThatItReads) {
  const auto check = [&](Sequence& seq) {
    for (const auto& [layer, owner] :
         {std::pair(kReadsFull, kFull), {kReadsMla, kMla}, {kReadsSliding, kSliding}}) {
      const auto view = seq.block_table(static_cast<int>(layer));
      const auto own = seq.block_table(static_cast<int>(owner));
      ASSERT_EQ(view.size(), own.size());
      EXPECT_EQ(BlocksOf(seq, layer), BlocksOf(seq, owner)) << "layer " << layer;
      EXPECT_FALSE(view.empty());
      for (size_t i = 0; i < view.size(); ++i) {
        EXPECT_EQ(view[i].units, own[i].units) << "layer " << layer << ", block " << i;
        EXPECT_EQ(view[i].tokens, own[i].tokens);
      }
    }
  };
  Sequence seq = space_.value().Begin(tokens_);
  Compute(seq, 0, 200);
  check(seq);
  ASSERT_TRUE(seq.Commit().ok());
  Compute(seq, 200, 300);  // published blocks were swapped, the tail is new
  check(seq);
  ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
  Sequence again = space_.value().Begin(tokens_);
  EXPECT_EQ(again.Wait(kReadsSliding), 300u);
  ASSERT_EQ(again.WaitAll(), 300u);
  check(again);
}

TEST_P(LayerShapesTest, NothingIsAppendedInAnotherLayersPlace) {
  Sequence seq = space_.value().Begin(tokens_);
  const std::vector<float> row(2 * 128 * 300);
  EXPECT_EQ(seq.Append(kReadsFull, 0, 10, {.data = row.data()}, {.data = row.data()}).message,
            "append: layer 4 reads layer 2, whose keys and values go there");
  const Packed k(spec_.layers[kFull].formats[0].key, 2, 64, 300);
  const Packed v(spec_.layers[kFull].formats[0].value, 2, 128, 300);
  Plan plan = space_.value().Reserve(tokens_);
  ASSERT_TRUE(plan.status().ok());
  EXPECT_EQ(plan.WritePacked(kReadsFull, 0, 300, k.view(), v.view()).message,
            "write_packed: layer 4 reads layer 2, whose keys and values go there");
}

// An engine that owns its KV memory writes keys alone where no values are stored.
TEST_P(LayerShapesTest, PackedKeysGoInAndComeOutWithoutValues) {
  Plan plan = space_.value().Reserve(tokens_);
  ASSERT_TRUE(plan.status().ok()) << plan.status().message;
  std::vector<Packed> keys, values;
  for (const TokenRun run : plan.missing()) {
    for (uint32_t layer = 0; layer < 4; ++layer) {
      const LayerSpec& l = spec_.layers[layer];
      const uint32_t count = run.end - run.begin;
      Packed k(l.formats[0].key, l.kv_heads, l.key_dim, count);
      Packed v(l.formats[0].value, l.kv_heads, l.value_dim, count);
      uint32_t state = layer + 1;
      for (Packed* const part : {&k, &v}) {
        for (auto* plane : {&part->codes, &part->scales, &part->biases}) {
          for (std::byte& byte : *plane) {
            byte = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
          }
        }
      }
      const bool stored = l.values == ValueSource::kStored;
      const Status put =
          plan.WritePacked(static_cast<int>(layer), run.begin, count, std::as_const(k).view(),
                           stored ? std::as_const(v).view() : PackedView{});
      ASSERT_TRUE(put.ok()) << put.message;
      keys.push_back(std::move(k));
      values.push_back(std::move(v));
    }
    ASSERT_TRUE(plan.Commit(run.end, {.sequence_end = run.end == 300}).ok());
  }
  ASSERT_EQ(keys.size(), 4u) << "one run";
  Lease lease = space_.value().Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), 300u);
  for (const uint32_t layer : {kMla, kKeys}) {
    const LayerSpec& l = spec_.layers[layer];
    Packed k(l.formats[0].key, l.kv_heads, l.key_dim, 300);
    ASSERT_TRUE(lease.Gather(static_cast<int>(layer), 0, 300, k.view(), {}).ok());
    EXPECT_EQ(k, keys[layer]);
  }
}

TEST_P(LayerShapesTest, WhatCannotBeSharedIsRefusedByLayer) {
  const auto refused = [&](auto change) {
    SpaceSpec spec = Shapes();
    change(spec);
    const Result<Space> space = client_->OpenSpace(spec);
    return space.status.message;
  };
  EXPECT_EQ(refused([](SpaceSpec& s) { s.layers[6].reads_layer = 9; }),
            "space: layer 6 reads layer 9, which is none");
  EXPECT_EQ(refused([](SpaceSpec& s) { s.layers[6].reads_layer = 4; }),
            "space: layer 6 reads layer 4, which has no cache of its own");
  EXPECT_EQ(refused([](SpaceSpec& s) { s.layers[6].kv_heads = 2; }),
            "space: layer 6 reads layer 0, and is described itself: what it reads has that "
            "layer's shape");
  SpaceSpec other = Shapes();
  other.layers[6].reads_layer = kFull;
  Result<Space> space = client_->OpenSpace(other);
  ASSERT_TRUE(space.ok()) << space.status.message;
  EXPECT_NE(space.value().id(), space_.value().id()) << "who reads whom is another space";
}

INSTANTIATE_TEST_SUITE_P(Arena, LayerShapesTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "InPlace" : "Copied"; });

}  // namespace
}  // namespace prefixd
