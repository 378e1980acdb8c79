// Spaces whose layers slide or keep a state: what comes back is right for every layer, or nothing
// is.
#include <algorithm>

#include "tests/client/restart.h"

namespace prefixd {
namespace {

constexpr uint32_t kWindow = 100, kSinks = 4;
constexpr uint64_t kStateBytes = 1000;

// Layers 0 and 3 full, 1 and 4 sliding, 2 and 5 with a state.
SpaceSpec HybridSpace(bool states) {
  SpaceSpec spec{.model = "hybrid", .weights_digest = {std::byte{9}}};
  const KvFormat format = MlxAffine(8, 64, Dtype::kF16);
  const LayerSpec full{.kv_heads = 2, .key_dim = 64, .value_dim = 128, .formats = {format}};
  LayerSpec sliding = full;
  sliding.kind = LayerKind::kSliding;
  sliding.window = kWindow;
  sliding.sink_tokens = kSinks;
  const LayerSpec state{.kind = LayerKind::kState, .state_bytes = kStateBytes};
  spec.layers = {full, sliding, full, sliding};
  if (states) spec.layers = {full, sliding, state, full, sliding, state};
  return spec;
}

// A layer's state after tokens [0, count).
std::vector<std::byte> StateOf(const std::vector<uint32_t>& tokens, uint32_t count, int layer) {
  uint32_t sum = static_cast<uint32_t>(layer) * 77;
  for (uint32_t i = 0; i < count; ++i) sum = sum * 31 + tokens[i];
  std::vector<std::byte> state(kStateBytes);
  for (std::byte& byte : state) byte = static_cast<std::byte>((sum = sum * 1664525 + 1) >> 24);
  return state;
}

class HybridTest : public RestartTest {
 protected:
  void Start(bool states) {
    spec_ = HybridSpace(states);
    StartDaemon();
    space_ = client_->OpenSpace(spec_);
    ASSERT_TRUE(space_.ok()) << space_.status.message;
  }
  void Restart(bool states) {
    space_ = {};
    StopDaemon();
    Start(states);
  }
  // Computes tokens [begin, end) as an engine would, with the states that are wanted on the way.
  void Compute(Sequence& seq, const std::vector<uint32_t>& tokens, uint32_t begin, uint32_t end) {
    const std::vector<uint32_t> wanted(seq.snapshots_wanted().begin(),
                                       seq.snapshots_wanted().end());
    for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
      const LayerSpec& l = spec_.layers[layer];
      const int index = static_cast<int>(layer);
      if (l.kind == LayerKind::kState) {
        for (const uint32_t at : wanted) {
          if (at <= begin || at > end) continue;
          const Status put = seq.PutState(index, at, StateOf(tokens, at, index));
          ASSERT_TRUE(put.ok()) << put.message;
        }
        continue;
      }
      const auto k = Tensor(tokens, begin, end - begin, layer, l.kv_heads, l.key_dim, true);
      const auto v = Tensor(tokens, begin, end - begin, layer, l.kv_heads, l.value_dim, false);
      const Status put =
          seq.Append(index, begin, end - begin, {.data = k.data()}, {.data = v.data()});
      ASSERT_TRUE(put.ok()) << put.message;
    }
  }
  // One request: looks up, computes the rest, stores. Returns the tokens that came from the cache.
  uint32_t Request(const std::vector<uint32_t>& tokens) {
    const auto count = static_cast<uint32_t>(tokens.size());
    Sequence seq =
        space_.value().Begin(tokens, {.max_cached_tokens = count - 1, .turn_ends = {&count, 1}});
    const uint32_t cached = seq.WaitAll();
    Check(seq, tokens, cached);
    Compute(seq, tokens, cached, count);
    const Result<CommitInfo> stored = seq.Commit({.sequence_end = true});
    EXPECT_TRUE(stored.ok()) << stored.status.message;
    return cached;
  }
  // Everything that a layer needs at `cached` is what a sequence of these tokens alone has.
  void Check(Sequence& seq, const std::vector<uint32_t>& tokens, uint32_t cached) {
    if (cached == 0) return;
    Sequence alone = space_.value().Begin(tokens, {.max_cached_tokens = 0});
    Compute(alone, tokens, 0, cached);
    for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
      const LayerSpec& l = spec_.layers[layer];
      const int index = static_cast<int>(layer);
      if (l.kind == LayerKind::kState) {
        std::vector<std::byte> state(kStateBytes);
        const Status got = seq.GetState(index, state);
        EXPECT_TRUE(got.ok()) << got.message;
        EXPECT_EQ(state, StateOf(tokens, cached, index)) << "layer " << layer;
        continue;
      }
      uint32_t begin = 0, seen = 0;
      for (const BlockTableEntry& block : seq.block_table(index)) {
        const uint32_t end = begin + block.tokens;
        const bool needed = l.kind == LayerKind::kFull || end + kWindow > cached || begin < kSinks;
        EXPECT_TRUE(block.units != nullptr || !needed) << "layer " << layer << ", block " << seen;
        if (block.units != nullptr) {
          Packed k(l.formats[0].key, l.kv_heads, l.key_dim, block.tokens), k2 = k;
          Packed v(l.formats[0].value, l.kv_heads, l.value_dim, block.tokens), v2 = v;
          EXPECT_TRUE(seq.Gather(index, begin, block.tokens, k.view(), v.view()).ok());
          EXPECT_TRUE(alone.Gather(index, begin, block.tokens, k2.view(), v2.view()).ok());
          EXPECT_EQ(k, k2);
          EXPECT_EQ(v, v2);
        }
        begin = end;
        ++seen;
      }
      EXPECT_EQ(begin, cached);
    }
  }

  SpaceSpec spec_;
  Result<Space> space_;
};

// S2-21
TEST_P(HybridTest, AnExactRepeatIsRestoredToItsLastTokenButOne) {
  Start(true);
  const std::vector<uint32_t> tokens = Tokens(400, 1);
  EXPECT_EQ(Request(tokens), 0u);
  EXPECT_EQ(Request(tokens), 399u);
  Restart(true);
  EXPECT_EQ(Request(tokens), 399u) << "after a restart";
}

TEST_P(HybridTest, SlidingLayersRestoreAnyLongerSequence) {
  Start(false);
  std::vector<uint32_t> tokens = Tokens(400, 1);
  EXPECT_EQ(Request(tokens), 0u);
  for (const uint32_t token : Tokens(130, 2)) tokens.push_back(token);
  EXPECT_EQ(Request(tokens), 400u);
  EXPECT_EQ(Request(tokens), 529u);
  Restart(false);
  EXPECT_EQ(Request(tokens), 529u);
}

// A turn after the other: each goes on at a state of the turn before.
TEST_P(HybridTest, TurnsGoOnAtASnapshot) {
  Start(true);
  std::vector<uint32_t> tokens = Tokens(200, 1);
  EXPECT_EQ(Request(tokens), 0u);
  for (uint32_t turn = 2; turn < 6; ++turn) {
    const auto before = static_cast<uint32_t>(tokens.size());
    for (const uint32_t token : Tokens(90, turn)) tokens.push_back(token);
    EXPECT_EQ(Request(tokens), before - 1);
  }
}

// The ends of earlier turns inside a prompt that is stored as a whole: whoever goes on from one of
// them finds its window and a state just before it, also once everything else is short of room.
TEST_P(HybridTest, TurnEndsInsideAPromptCanBeGoneOnFrom) {
  Start(true);
  const std::vector<uint32_t> tokens = Tokens(400, 1);
  const std::vector<uint32_t> turns = {150, 290, 400};
  {
    Sequence seq = space_.value().Begin(tokens, {.turn_ends = turns});
    for (const uint32_t turn : turns) {
      EXPECT_TRUE(std::ranges::count(seq.snapshots_wanted(), turn - 1)) << turn;
    }
    Compute(seq, tokens, 0, 400);
    ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
  }
  EXPECT_EQ(daemon_->space().ends, 3u);
  const auto check = [&] {
    for (const uint32_t turn : turns) {
      // Another last token: what was said before it is shared, and nothing behind it.
      std::vector<uint32_t> other(tokens.begin(), tokens.begin() + turn - 1);
      for (const uint32_t token : Tokens(50, turn)) other.push_back(token + 5000);
      Sequence seq = space_.value().Begin(other);
      ASSERT_EQ(seq.WaitAll(), turn - 1) << seq.match().why_shorter;
      Check(seq, other, turn - 1);
    }
  };
  check();
  Restart(true);
  check();
}

// Never cut, never another position's: a request that leaves the stored one between snapshots
// begins at the last one before.
TEST_P(HybridTest, ARequestThatLeavesBetweenSnapshotsBeginsAtOneBefore) {
  Start(true);
  const std::vector<uint32_t> tokens = Tokens(400, 1);
  EXPECT_EQ(Request(tokens), 0u);
  std::vector<uint32_t> other = tokens;
  for (uint32_t i = 300; i < 400; ++i) other[i] += 1;
  Sequence seq = space_.value().Begin(other, {.max_cached_tokens = 399});
  EXPECT_EQ(seq.match().matched_tokens, 300u);
  const uint32_t cached = seq.WaitAll();
  EXPECT_LE(cached, 300u);
  Check(seq, other, cached);
  if (cached < 300) {
    EXPECT_NE(seq.match().why_shorter.find("no_state_snapshot"), std::string::npos)
        << seq.match().why_shorter;
  }
}

TEST_P(HybridTest, StatesOfOtherLayersSizesAndPlacesAreRefused) {
  Start(true);
  const std::vector<uint32_t> tokens = Tokens(100, 1);
  Sequence seq = space_.value().Begin(tokens);
  const std::vector<std::byte> state(kStateBytes), less(kStateBytes - 1);
  EXPECT_EQ(seq.PutState(0, 10, state).message,
            "put_state: layer 0 keeps a state of 0 bytes, 1000 were given");
  EXPECT_EQ(seq.PutState(2, 10, less).message,
            "put_state: layer 2 keeps a state of 1000 bytes, 999 were given");
  EXPECT_EQ(seq.PutState(2, 101, state).message, "put_state: at token 101, announced are 100");
  std::vector<std::byte> into(kStateBytes);
  EXPECT_EQ(seq.GetState(2, into).code, StatusCode::kNotFound);
  const std::vector<float> k(2 * 64 * 100), v(2 * 128 * 100);
  EXPECT_EQ(seq.Append(2, 0, 100, {.data = k.data()}, {.data = v.data()}).message,
            "append: layer 2 keeps a state and no tokens, PutState() takes it");
  EXPECT_TRUE(seq.block_table(2).empty());
}

INSTANTIATE_TEST_SUITE_P(Arena, HybridTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "InPlace" : "Copied"; });

}  // namespace
}  // namespace prefixd
