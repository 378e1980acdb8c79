// What goes without its block: sliding pages that no end can need, snapshots beyond their share or
// beyond what a chain keeps; and where snapshots are wanted.
#include <random>

#include "base/steps.h"
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
  void StoreFullPages(const Tokens& tokens) {
    const block::ReservationId id = Reserve({tokens, {}});
    for (uint32_t i = 0; i < reserved_.plan.blocks.size(); ++i) {
      ASSERT_TRUE(index_.Publish(id, i, std::vector<NewPage>{MakePage(0)}).ok());
    }
    ASSERT_TRUE(index_.CloseReservation(id).ok());
  }
  block::ReservePlan PlanOf(const Tokens& tokens, const std::vector<uint32_t>& turn_ends) {
    Reserved reserved = index_.Reserve(space_, {tokens, {}}, {}, kMe, {turn_ends}).value();
    EXPECT_TRUE(index_.CloseReservation(reserved.plan.reservation).ok());
    return reserved.plan;
  }
  uint32_t Restorable(const Tokens& tokens, std::vector<uint32_t> groups = {}) {
    return Match(tokens, {.selection = {.groups = std::move(groups), .rungs = {}}})
        .restorable_tokens;
  }
};

TEST_F(LooseTest, WindowsAreWantedBeforeEveryTurnEndWhateverTheirOrder) {
  const Tokens tokens = Count(0, 400);
  StoreFullPages(tokens);
  std::mt19937 random(20);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint32_t> turn_ends(random() % 5);
    for (uint32_t& end : turn_ends) end = 1 + static_cast<uint32_t>(random()) % 500;
    const block::ReservePlan plan = PlanOf(tokens, turn_ends);
    turn_ends.push_back(400);
    for (const block::BlockPlan& block : plan.blocks) {
      const bool wanted = std::ranges::any_of(turn_ends, [&](uint32_t end) {
        const bool in_window = block.first_token + block.tokens + 40 > end;
        return block.first_token < end && end <= 400 && (block.first_token < 4 || in_window);
      });
      EXPECT_EQ(block.rungs[1], wanted ? 0 : block::kNoLimit) << block.first_token;
    }
  }
}

TEST_F(LooseTest, APlanCostsWhatItsSequenceAndItsTurnEndsAreLong) {
  const auto steps_of = [&](uint32_t count) {
    const Tokens tokens = Count(0, count);
    StoreFullPages(tokens);
    std::vector<uint32_t> turn_ends(count);  // the last first, one at every token
    std::iota(turn_ends.rbegin(), turn_ends.rend(), 1);
    const uint64_t before = base::steps;
    PlanOf(tokens, turn_ends);
    return base::steps - before;
  };
  const uint64_t once = steps_of(2000), twice = steps_of(4000);
  EXPECT_GE(once, 2000u);
  EXPECT_LE(once, 3 * 2000u);
  EXPECT_LE(twice, 2 * once + 200);
}

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
  static constexpr uint64_t kShare = 8 * block::kExtentUnit;
  SnapshotShareTest() : LooseTest({.limits = {.snapshot_bytes = kShare}}) {}

  uint32_t SnapshotsLeft(const Tokens& tokens, const std::vector<uint32_t>& positions) {
    uint32_t left = 0;
    for (const uint32_t at : positions) {
      left += Restorable(FirstOf(tokens, at), {0, 2}) == at ? 1 : 0;
    }
    return left;
  }
  const std::vector<uint32_t> positions_ = {16, 32, 48, 64, 80, 160};
};

TEST_F(SnapshotShareTest, SnapshotsNeverTakeMoreThanTheirShareAndTheColdestGo) {
  const Tokens cold = Count(0, 160);
  const Tokens warm = Count(1000, 160);
  StoreAll(cold, {}, &positions_);
  EXPECT_EQ(index_.Counts().snapshot_bytes, 6 * block::kExtentUnit);
  StoreAll(warm, {}, &positions_);
  EXPECT_EQ(index_.Counts().snapshot_bytes, kShare);
  EXPECT_EQ(index_.Counts().evicted_snapshots, 4u);
  EXPECT_EQ(SnapshotsLeft(warm, positions_), 6u);
  EXPECT_EQ(SnapshotsLeft(cold, positions_), 2u);
  EXPECT_EQ(Restorable(cold, {0}), 160u);  // keys and values stay
}

TEST_F(SnapshotShareTest, CleanSnapshotsGoBeforeColderOnesThatWouldBeLost) {
  const Tokens clean = Count(0, 160);
  const Tokens dirty = Count(1000, 160);
  StoreAll(clean, {}, &positions_);
  SpillAll();
  const std::vector<uint32_t> two = {80, 160};
  StoreAll(dirty, {}, &two);
  const Tokens more = Count(2000, 160);
  StoreAll(more, {}, &positions_);
  EXPECT_EQ(index_.Counts().snapshot_bytes, kShare);
  // Those of the first are on SSD; nothing was lost.
  EXPECT_EQ(SnapshotsLeft(clean, positions_), 6u);
  EXPECT_EQ(SnapshotsLeft(dirty, two), 2u);
  EXPECT_EQ(SnapshotsLeft(more, positions_), 6u);
}

TEST_F(SnapshotShareTest, SnapshotsThatAreHeldStayAndNewOnesAreRefused) {
  const Tokens tokens = Count(0, 160);
  std::vector<uint32_t> positions;
  for (uint32_t at = 16; at <= 128; at += 16) positions.push_back(at);
  StoreAll(tokens, {}, &positions);
  std::vector<Acquired> held;
  for (const uint32_t at : positions) held.push_back(Acquire(FirstOf(tokens, at), {}, kOther));
  const Tokens other = Count(1000, 40);
  const std::vector<uint32_t> one = {32};
  StoreAll(other, {}, &one);
  EXPECT_EQ(index_.Counts().snapshot_bytes, kShare);
  EXPECT_EQ(index_.Counts().refused_snapshots, 1u);
  EXPECT_EQ(Restorable(other, {0, 1}), 40u);
  EXPECT_EQ(Restorable(other), 0u);
  EXPECT_EQ(SnapshotsLeft(tokens, positions), 8u);
  ASSERT_TRUE(index_.Release(held.front().lease).ok());
  StoreAll(other, {}, &one);
  EXPECT_EQ(Restorable(other), 32u);
  EXPECT_EQ(SnapshotsLeft(tokens, positions), 7u);
  for (size_t i = 1; i < held.size(); ++i) ASSERT_TRUE(index_.Release(held[i].lease).ok());
}

TEST_F(SnapshotShareTest, OneFromSsdComesInPlaceOfOthersOrNotAtAll) {
  const Tokens tokens = Count(0, 160);
  StoreAll(tokens, {}, &positions_);
  SpillAll();
  EvictAll();
  EXPECT_EQ(index_.Counts().snapshot_bytes, 0u);
  std::vector<uint32_t> many;
  for (uint32_t at = 16; at <= 128; at += 16) many.push_back(at);
  const Tokens other = Count(1000, 160);
  StoreAll(other, {}, &many);
  const Acquired held = Acquire(FirstOf(tokens, 80), {}, kMe);
  const auto snapshot =
      std::ranges::find_if(held.pages, [](const PageInfo& page) { return page.ref.group == 2; });
  ASSERT_NE(snapshot, held.pages.end());
  const auto promote = [&] {
    EXPECT_TRUE(index_.BeginPromotion(snapshot->ref));
    const NewPage place = MakePage(2, 0);
    const bool done = index_.FinishPromotion(snapshot->ref, place.extent, place.marks);
    if (!done) index_.FailPromotion(snapshot->ref, PrefixIndex::PromotionFailure::kTryAgain);
    return done;
  };
  std::vector<Acquired> readers;
  for (const uint32_t at : many) readers.push_back(Acquire(FirstOf(other, at), {}, kOther));
  EXPECT_FALSE(promote());
  EXPECT_EQ(index_.Counts().snapshot_bytes, kShare);
  for (const Acquired& reader : readers) ASSERT_TRUE(index_.Release(reader.lease).ok());
  EXPECT_TRUE(promote());
  EXPECT_EQ(index_.Counts().snapshot_bytes, kShare);
  EXPECT_EQ(SnapshotsLeft(other, many), 7u);
  ASSERT_TRUE(index_.Release(held.lease).ok());
}

TEST_F(SnapshotShareTest, ASmallerShareIsKeptAtOnce) {
  const Tokens tokens = Count(0, 160);
  StoreAll(tokens, {}, &positions_);
  index_.SetLimits({.snapshot_bytes = 2 * block::kExtentUnit});
  EXPECT_EQ(index_.Counts().snapshot_bytes, 2 * block::kExtentUnit);
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
