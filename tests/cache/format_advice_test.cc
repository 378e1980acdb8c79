// Which rung writers are told to write new blocks in, while room is short and after.
#include "cache/tables/format_advice.h"

#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

using cache::FormatAdvice;

// S1-39
TEST(FormatAdviceTest, ItBeginsAboveFivePercentOfMissesAndEndsBelowTwo) {
  FormatAdvice advice({.window_tokens = 100'000, .judged_from_tokens = 1'000});
  advice.CountRequest(900, 900);
  EXPECT_EQ(advice.Steps(0), 0u) << "too few requested to say anything";
  FormatAdvice other({.window_tokens = 100'000, .judged_from_tokens = 1'000});
  other.CountRequest(10'000, 490);
  EXPECT_EQ(other.Steps(0), 0u) << "4.9 %";
  other.CountRequest(10'000, 520);
  EXPECT_EQ(other.Steps(0), 1u) << "5.05 %";
  EXPECT_EQ(other.state().missed_permille, 50u);
  other.CountRequest(20'000, 0);
  EXPECT_EQ(other.Steps(0), 1u) << "2.5 %: it goes on until below 2 %";
  other.CountRequest(20'000, 0);
  EXPECT_EQ(other.Steps(0), 0u) << "1.7 %";
  EXPECT_EQ(other.state().times, 1u);
}

TEST(FormatAdviceTest, WhatLiesFarBackFades) {
  FormatAdvice advice({.window_tokens = 10'000, .judged_from_tokens = 1'000});
  for (int i = 0; i < 10; ++i) advice.CountRequest(1'000, 1'000);
  EXPECT_EQ(advice.Steps(0), 1u);
  for (int i = 0; i < 100; ++i) advice.CountRequest(1'000, 0);
  EXPECT_EQ(advice.Steps(0), 0u);
}

// S1-39
TEST(FormatAdviceTest, AFullTierIsTightFromItsLimitUntilATenthBelow) {
  FormatAdvice advice({.on_misses = false, .coarser_above = 0.8});
  for (const auto& [used, steps] : std::vector<std::pair<double, uint32_t>>{
           {0.5, 0}, {0.79, 0}, {0.81, 1}, {0.75, 1}, {0.71, 1}, {0.69, 0}, {0.79, 0}, {0.9, 1}}) {
    EXPECT_EQ(advice.Steps(used), steps) << used;
  }
  EXPECT_EQ(advice.state().times, 2u);
}

TEST(FormatAdviceTest, BothRulesMayBeOff) {
  FormatAdvice advice({.on_misses = false});
  for (int i = 0; i < 100; ++i) advice.CountRequest(10'000, 10'000);
  EXPECT_EQ(advice.Steps(1), 0u);
}

class AdviceTest : public CacheTest {
 protected:
  // 8 bits, then 4.
  static block::SpaceIdentity Ladder() {
    block::SpaceIdentity identity = SmallIdentity(64, 16);
    for (block::LayerGroup& group : identity.groups) {
      const quant::TensorFormat eight = quant::MlxAffineFormat(8, 32, quant::Dtype::kF16);
      const quant::TensorFormat four = quant::MlxAffineFormat(4, 32, quant::Dtype::kF16);
      group.ladder = {{eight, eight}, {four, four}};
    }
    return identity;
  }
  block::ReservePlan PlanOf(block::SpaceHandle space, const Tokens& tokens,
                            std::vector<uint64_t> writable = {}) {
    auto plan = cache_->Reserve(session_, {.space = space,
                                           .tokens = tokens,
                                           .content = {},
                                           .groups = {},
                                           .writable = std::move(writable)});
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return {};
    EXPECT_TRUE(cache_->Abandon(session_, plan->reservation).ok());
    return *plan;
  }
  static std::vector<uint32_t> RungsOf(const block::ReservePlan& plan) {
    std::vector<uint32_t> rungs;
    for (const block::BlockPlan& block : plan.blocks) rungs.push_back(block.rungs[0]);
    return rungs;
  }
  void Fill(const block::SpaceIdentity& identity, block::SpaceHandle space, double share) {
    for (uint64_t i = 0; Used() < share; ++i) {
      ASSERT_TRUE(Store(identity, space, RandomTokens(i, 640)).ok());
      ASSERT_LT(i, 1000u);
    }
  }
  double Used() { return static_cast<double>(Counter("arena.extent_bytes")) / kArena; }
  // About what is left of 32 MiB for pages; exact enough for "clearly above" and "clearly below".
  static constexpr double kArena = 26 << 20;
};

// S1-39
TEST_F(AdviceTest, AboveItsShareOfRamNewBlocksAreAdvisedCoarserAndStoredOnesStay) {
  cache::Options options = RamOnly(uint64_t{32} << 20);
  options.coarser_above = 0.5;
  options.coarser_on_misses = false;
  Open(options);
  const auto identity = Ladder();
  const auto space = OpenSpace(identity);
  const Tokens before = RandomTokens(1000, 100);
  ASSERT_TRUE(Store(identity, space, before).ok());
  Fill(identity, space, 0.7);
  const Tokens fresh = RandomTokens(2000, 130);
  EXPECT_EQ(RungsOf(PlanOf(space, fresh)), (std::vector<uint32_t>{1, 1, 1}));
  EXPECT_EQ(RungsOf(PlanOf(space, fresh, std::vector<uint64_t>(identity.groups.size(), 1))),
            (std::vector<uint32_t>{0, 0, 0}))
      << "a writer that can write one rung is not told another";
  EXPECT_GT(Counter("advice.coarser_pages"), 0u);
  EXPECT_EQ(Counter("advice.coarser"), 1u);
  // The block that goes on behind 36 stored tokens keeps their rung; the next one is new.
  Tokens longer = before;
  for (Token token : RandomTokens(3000, 60)) longer.push_back(token);
  const block::ReservePlan plan = PlanOf(space, longer);
  ASSERT_EQ(plan.blocks.size(), 3u);
  EXPECT_EQ(plan.blocks[0].state, block::BlockState::kPresent);
  EXPECT_EQ(plan.blocks[1].rungs[0], 0u);
  EXPECT_EQ(plan.blocks[2].rungs[0], 1u);
  // What is advised is what comes back, byte for byte, behind what was stored before.
  ASSERT_TRUE(Store(identity, space, longer).ok());
  const auto acquired = Acquire(space, longer);
  EXPECT_EQ(FetchAndCheck(identity, acquired, longer), longer.size());
  std::vector<uint32_t> rungs;
  for (const block::LeasedPage& page : acquired.pages) {
    if (page.group == 0) rungs.push_back(page.rung);
  }
  EXPECT_EQ(rungs, (std::vector<uint32_t>{0, 0, 1}));
}

// S1-39
TEST_F(AdviceTest, WhileWhatIsAskedForHadJustBeenGivenUpNewBlocksAreAdvisedCoarser) {
  Open(RamOnly(uint64_t{32} << 20));
  const auto identity = Ladder();
  const auto space = OpenSpace(identity);
  const Tokens fresh = RandomTokens(5000, 64);
  constexpr uint64_t kSequences = 45;  // more than the tier holds
  for (uint64_t i = 0; i < kSequences; ++i) {
    ASSERT_TRUE(Store(identity, space, RandomTokens(i, 640)).ok());
  }
  ASSERT_GT(Counter("pages.dropped"), 0u);
  EXPECT_EQ(RungsOf(PlanOf(space, fresh)), (std::vector<uint32_t>{0})) << "nobody missed anything";
  for (uint64_t i = 0; i < 30; ++i) {
    const auto acquired = Acquire(space, RandomTokens(i, 640));
    EXPECT_LT(acquired.match.restorable_tokens, 640u) << i;
    if (acquired.lease) {
      ASSERT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
    }
  }
  EXPECT_GT(Counter("tokens.given_up"), 30u * 640 / 2);
  EXPECT_EQ(RungsOf(PlanOf(space, fresh)), (std::vector<uint32_t>{1}));
  EXPECT_EQ(Counter("advice.times"), 1u);
}

TEST_F(AdviceTest, PromptsThatNobodyHadStoredAreNoReasonToBeCoarser) {
  Open(RamOnly(uint64_t{32} << 20));
  const auto identity = Ladder();
  const auto space = OpenSpace(identity);
  for (uint64_t i = 0; i < 60; ++i) Acquire(space, RandomTokens(i, 640));
  EXPECT_EQ(Counter("tokens.given_up"), 0u);
  EXPECT_EQ(RungsOf(PlanOf(space, RandomTokens(5000, 64))), (std::vector<uint32_t>{0}));
}

}  // namespace
}  // namespace prefixd::testing
