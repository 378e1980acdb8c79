// Snapshots of states that build 11549 of llama.cpp wrote (tests/data/llama).
#include "client/llama/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "client/llama/state_tensors.h"

namespace prefixd::llama {
namespace {

constexpr uint32_t kWindow = 32;

std::vector<std::byte> Written(const std::string& name) {
  std::ifstream file(PREFIXD_TEST_DATA "/llama/" + name, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// One state and its map.
struct State {
  std::vector<std::byte> bytes;
  interop::LlamaStateMap map;
};
State Load(const std::string& name) {
  State state{Written(name), {}};
  state.map = *interop::MapLlamaState(state.bytes);
  return state;
}

// Returns the state that a snapshot after `length` tokens gives.
State Restored(const State& from, uint32_t length, std::span<const std::byte> snapshot) {
  const auto first = FirstTokens(from.map.context, snapshot.size(), length);
  const std::span tokens(from.map.tokens);
  State to;
  to.map = interop::LayOutLlamaState(from.map.context, tokens.first(length), length, *first);
  to.bytes.resize(to.map.bytes, std::byte{0xee});
  interop::WriteLlamaHeads(to.map, to.bytes);
  RestoreSnapshot(to.map, snapshot, to.bytes.data());
  return to;
}

TEST(SnapshotTest, L5TheWindowComesBackWithARowOfZerosInFront) {
  State state = Load("sliding_with_checkpoint.bin");
  std::vector<std::byte> snapshot(SnapshotBytes(state.map.context, kWindow));
  ASSERT_TRUE(TakeSnapshot(state.map, state.bytes.data(), snapshot));

  State back = Restored(state, state.map.length, snapshot);
  EXPECT_EQ(back.map.caches[1].first, state.map.length - kWindow - 1);
  const auto mapped = interop::MapLlamaState(back.bytes);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  std::vector<std::byte> again(snapshot.size());
  ASSERT_TRUE(TakeSnapshot(*mapped, back.bytes.data(), again));
  EXPECT_EQ(again, snapshot);

  const interop::LlamaCacheMap& from = state.map.caches[1];
  const interop::LlamaCacheMap& to = back.map.caches[1];
  for (size_t layer = 0; layer < to.keys.size(); ++layer) {
    const uint64_t row = state.map.context.caches[1].keys[layer].token_bytes;
    const std::vector<std::byte> zeros(row);
    EXPECT_EQ(std::memcmp(&back.bytes[to.keys[layer]], zeros.data(), row), 0);
    const size_t first = from.keys[layer] + (from.cells - kWindow) * row;
    EXPECT_EQ(std::memcmp(&back.bytes[to.keys[layer] + row], &state.bytes[first], kWindow * row),
              0);
  }
}

TEST(SnapshotTest, L5ASequenceThatIsNoLongerThanTheWindowHasNoSnapshot) {
  State state = Load("sliding_with_checkpoint.bin");
  const interop::LlamaStateMap cut =
      interop::CutLlamaState(state.map, state.map.checkpoints[0]);  // 32 tokens
  std::vector<std::byte> snapshot(SnapshotBytes(state.map.context, kWindow), std::byte{0xee});
  const std::vector<std::byte> untouched = snapshot;
  EXPECT_FALSE(TakeSnapshot(cut, state.bytes.data(), snapshot));
  EXPECT_EQ(snapshot, untouched);
  EXPECT_TRUE(absl::IsDataLoss(FirstTokens(state.map.context, snapshot.size(), 32).status()));
  EXPECT_THAT(*FirstTokens(state.map.context, snapshot.size(), 33), ::testing::ElementsAre(0u, 0u));
}

TEST(SnapshotTest, L5RecurrentStatesComeBackAsTheyWereAtTheEndAndAtACheckpoint) {
  State state = Load("hybrid_with_checkpoints.bin");
  const auto expect = [&](const interop::LlamaStateMap& map) {
    std::vector<std::byte> snapshot(SnapshotBytes(map.context, 0));
    ASSERT_EQ(snapshot.size(), map.context.recurrent_bytes);
    ASSERT_TRUE(TakeSnapshot(map, state.bytes.data(), snapshot));
    EXPECT_EQ(std::memcmp(snapshot.data(), &state.bytes[map.recurrent], snapshot.size()), 0);
    const State back = Restored(state, map.length, snapshot);
    const auto mapped = interop::MapLlamaState(back.bytes);
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    EXPECT_EQ(std::memcmp(&back.bytes[mapped->recurrent], snapshot.data(), snapshot.size()), 0);
  };
  expect(state.map);
  expect(interop::CutLlamaState(state.map, state.map.checkpoints[1]));
}

TEST(SnapshotTest, StatesThatCanBeCutAnywhereHaveNoSnapshot) {
  const State state = Load("q8_0_rotated.bin");
  EXPECT_EQ(SnapshotBytes(state.map.context, kWindow), 0u);
}

}  // namespace
}  // namespace prefixd::llama
