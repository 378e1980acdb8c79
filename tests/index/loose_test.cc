// What goes without its block: sliding pages that no end can need, snapshots beyond their share or
// beyond what a chain keeps; and where snapshots are wanted.
#include "tests/index/index_fixture.h"

namespace prefixd::index {
namespace {

constexpr auto kSliding = block::LayerKind::kSliding;
constexpr auto kState = block::LayerKind::kState;

// Group 0 is full, group 1 slides (40 tokens, 4 sinks), group 2 has states; blocks of 16 tokens.
class LooseTest : public IndexTest {
 protected:
  explicit LooseTest(PrefixIndex::Options options = {}) : IndexTest(16, {1}, options) {
    SpaceShape shape{.id = {}, .block_tokens = 16, .rungs = {1, 1, 0}};
    shape.rules = {{}, {.kind = kSliding, .window = 40, .sink_tokens = 4}, {.kind = kState}};
    shape.id[0] = std::byte{9};
    space_ = index_.AddSpace(shape);
  }
  // Everything that the plan wants, or the snapshots at `positions` instead of its own.
  block::ReservePlan StoreAll(const Tokens& tokens, std::vector<uint32_t> turn_ends = {},
                              const std::vector<uint32_t>* positions = nullptr) {
    Reserved reserved = index_.Reserve(space_, {tokens, {}}, {}, kMe, {turn_ends}).value();
    const block::ReservePlan& plan = reserved.plan;
    for (uint32_t i = 0; i < plan.blocks.size(); ++i) {
      const block::BlockPlan& block = plan.blocks[i];
      std::vector<NewPage> pages;
      for (uint32_t group = 0; group < 2; ++group) {
        if (block.rungs[group] != block::kNoLimit) pages.push_back(MakePage(group, 0));
      }
      for (const uint32_t at : positions != nullptr ? *positions : plan.snapshot_tokens) {
        if (at <= block.first_token || at > block.first_token + block.tokens) continue;
        pages.push_back(MakePage(2, at - block.first_token));
      }
      if (!pages.empty()) {
        EXPECT_TRUE(index_.Publish(plan.reservation, i, pages).ok());
      }
    }
    turn_ends.push_back(static_cast<uint32_t>(tokens.size()));
    for (const uint32_t end : turn_ends) EXPECT_TRUE(index_.AddEnd(plan.reservation, end).ok());
    EXPECT_TRUE(index_.CloseReservation(plan.reservation).ok());
    return plan;
  }
  uint32_t Restorable(const Tokens& tokens, std::vector<uint32_t> groups = {}) {
    return Match(tokens, {.selection = {.groups = std::move(groups), .rungs = {}}})
        .restorable_tokens;
  }
};

TEST_F(LooseTest, SnapshotsAreWantedJustBeforeEndsWhereSequencesPartAndOnALattice) {
  const Tokens first = Count(0, 200);
  const block::ReservePlan plan = StoreAll(first, {70});
  std::vector<uint32_t> expected;
  for (uint32_t border = 16; border < 200; border += 16) expected.push_back(border);
  expected.push_back(69);
  expected.push_back(199);
  std::ranges::sort(expected);
  EXPECT_EQ(plan.snapshot_tokens, expected);
  // One that leaves it after 100 tokens: what is there is not wanted again.
  const Tokens second = Join(Count(0, 100), Count(1000, 30));
  const block::ReservePlan other = StoreAll(second);
  EXPECT_EQ(other.snapshot_tokens, (std::vector<uint32_t>{100, 112, 128, 129}));
  EXPECT_EQ(Restorable(FirstOf(second, 129)), 129u);
  EXPECT_EQ(Restorable(Join(Count(0, 100), Count(5000, 9))), 100u);
}

TEST_F(LooseTest, NoPlanWantsMoreThan64SnapshotsOfAChain) {
  const Tokens tokens = Count(0, 16 * 500);
  const block::ReservePlan plan = StoreAll(tokens);
  EXPECT_LE(plan.snapshot_tokens.size(), 64u);
  EXPECT_GE(plan.snapshot_tokens.size(), 32u);
  for (size_t i = 0; i + 1 < plan.snapshot_tokens.size(); ++i) {
    EXPECT_EQ(plan.snapshot_tokens[i] % 128, 0u);
  }
}

TEST_F(LooseTest, AChainKeepsItsEndsAndItsLastSnapshotOf64) {
  const Tokens tokens = Count(0, 16 * 100);
  std::vector<uint32_t> positions;
  for (uint32_t at = 16; at <= 1600; at += 16) positions.push_back(at);
  positions.insert(positions.begin() + 3, 49);
  StoreAll(tokens, {50}, &positions);
  uint32_t kept = 0;
  for (const uint32_t at : positions) kept += Restorable(FirstOf(tokens, at)) == at ? 1 : 0;
  EXPECT_EQ(kept, 64u);
  EXPECT_EQ(Restorable(FirstOf(tokens, 49)), 49u);
  EXPECT_EQ(Restorable(tokens), 1600u);
}

TEST_F(LooseTest, SlidingPagesThatNoEndCanNeedGoFirst) {
  const Tokens tokens = Count(0, 320);
  StoreAll(tokens, {160});
  // Blocks 1 to 6 and 10 to 16: neither sinks, nor within 40 tokens before 160 or 320.
  for (int i = 0; i < 13; ++i) {
    const auto evicted = index_.EvictOne(true);
    ASSERT_TRUE(evicted.has_value());
    EXPECT_EQ(evicted->pages, 1u);
  }
  EXPECT_EQ(Restorable(tokens, {0, 1}), 320u);
  EXPECT_EQ(Restorable(FirstOf(tokens, 160), {0, 1}), 160u);
  EXPECT_EQ(Restorable(FirstOf(tokens, 150), {0, 1}), 16u);
  EXPECT_EQ(Restorable(tokens, {0}), 320u);
  ASSERT_TRUE(index_.EvictOne(true).has_value());  // nothing else goes alone: the last block
  EXPECT_EQ(Restorable(tokens, {0}), 304u);
}

TEST_F(LooseTest, PagesBehindALeafGoOnceTheSequenceGoesOn) {
  const Tokens tokens = Count(0, 320);
  const Tokens start = FirstOf(tokens, 96);
  const block::ReservationId id = Reserve({tokens, {}});
  for (uint32_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(index_.Publish(id, i, std::vector<NewPage>{MakePage(0), MakePage(1)}).ok());
  }
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(index_.EvictOne(false).has_value());  // blocks 1 and 2
  EXPECT_FALSE(index_.EvictOne(false).has_value());
  EXPECT_EQ(Restorable(start, {0, 1}), 96u);
  for (uint32_t i = 6; i < 20; ++i) {
    ASSERT_TRUE(index_.Publish(id, i, std::vector<NewPage>{MakePage(0), MakePage(1)}).ok());
  }
  EXPECT_TRUE(index_.EvictOne(false).has_value());
  EXPECT_LT(Restorable(start, {0, 1}), 96u);
  EXPECT_EQ(Restorable(tokens, {0, 1}), 320u);
}

class SnapshotShareTest : public LooseTest {
 protected:
  // Snapshots may take eight extents.
  SnapshotShareTest() : LooseTest({.total_lease_bytes = 32 * block::kExtentUnit}) {}
};

TEST_F(SnapshotShareTest, SnapshotsBeyondTheirShareGoBeforeBlocksColdestFirst) {
  const Tokens cold = Count(0, 160);
  const Tokens warm = Count(1000, 160);
  const std::vector<uint32_t> positions = {16, 32, 48, 64, 80, 160};
  StoreAll(cold, {}, &positions);
  StoreAll(warm, {}, &positions);
  while (Restorable(cold, {0}) == 160 && Restorable(warm, {0}) == 160) {
    ASSERT_TRUE(index_.EvictOne(true).has_value());
  }
  EXPECT_EQ(Restorable(warm, {0, 2}), 160u);
  uint32_t left = 0;
  for (const uint32_t at : positions) left += Restorable(FirstOf(cold, at), {0, 2}) == at ? 1 : 0;
  EXPECT_LE(left, 2u);
  EXPECT_GE(Restorable(cold, {0}), 144u);
}

TEST_F(LooseTest, ASnapshotMovesToTheBlockThatSupersedesItsOwnOnceNobodyHoldsIt) {
  const Tokens tokens = Count(0, 64);
  const std::vector<uint32_t> positions = {39};
  StoreAll(FirstOf(tokens, 40), {}, &positions);
  const Acquired held = Acquire(FirstOf(tokens, 39), {}, kOther);
  ASSERT_EQ(held.answer.restorable_tokens, 39u);
  const std::vector<uint32_t> none;
  StoreAll(tokens, {}, &none);
  EXPECT_EQ(Restorable(FirstOf(tokens, 39)), 39u);
  EXPECT_EQ(Summary().blocks, 5u);  // the partial one stays for its reader
  ASSERT_TRUE(index_.Release(held.lease).ok());
  EXPECT_EQ(Summary().blocks, 4u);
  EXPECT_EQ(Restorable(FirstOf(tokens, 39)), 39u);
  EXPECT_EQ(Acquire(FirstOf(tokens, 39)).pages.back().ref.rung, 7u);
}

TEST_F(LooseTest, ASnapshotIsNamedByItsOwnTokensWhereverItHangs) {
  const Tokens tokens = Count(0, 64);
  const std::vector<uint32_t> positions = {39};
  StoreAll(FirstOf(tokens, 40), {}, &positions);
  const block::PageName before = Acquire(FirstOf(tokens, 39)).pages.back().name;
  EndSession(kMe);
  StoreAll(tokens, {}, &positions);
  const block::PageName after = Acquire(FirstOf(tokens, 39)).pages.back().name;
  EXPECT_EQ(before, after);
  EXPECT_EQ(after.tokens, 7u);
}

}  // namespace
}  // namespace prefixd::index
