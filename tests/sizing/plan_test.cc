// The sizes that a plan chooses and what it says of them.
#include "sizing/plan.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/sizing/traces.h"

namespace prefixd::sizing {
namespace {

constexpr uint32_t kBlock = 64;
constexpr uint64_t kMiB = uint64_t{1} << 20;

// About 6,000 blocks of 1 MiB.
Trace ManyBlocks() {
  std::mt19937 random(5);
  return TraceOf(RandomPaths(random, {.requests = 4'000, .longest = 8, .fan_out = 12}), kBlock);
}

PlanOptions Options() {
  PlanOptions options;
  options.shape.bytes_per_token = kMiB / kBlock;
  return options;
}

double Share(const Hits& hits) { return hits.Share(hits.tokens()); }

TEST(PlanTest, WithoutSizesItClimbsFromLittleToNearlyAllThatCanBeHit) {
  const Trace trace = ManyBlocks();
  const auto plan = MakePlan(trace, Options());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->working_set_bytes, trace.unique * kMiB);
  ASSERT_GE(plan->ram_bytes.size(), 5u);
  EXPECT_LT(Share(plan->cell(0, 0).hits), 0.6 * Share(plan->most));
  EXPECT_GE(Share(plan->cells[(plan->ram_bytes.size() - 1) * plan->ssd_bytes.size()].hits),
            0.995 * Share(plan->most));
  for (size_t i = 1; i < plan->ram_bytes.size(); ++i) {
    EXPECT_EQ(plan->ram_bytes[i], 2 * plan->ram_bytes[i - 1]);
    EXPECT_GE(Share(plan->cell(i, 0).hits), Share(plan->cell(i - 1, 0).hits));
  }
  ASSERT_GE(plan->ssd_bytes.size(), 2u);
  EXPECT_EQ(plan->ssd_bytes[0], 0u);
  EXPECT_GT(Share(plan->cell(0, 1).hits), Share(plan->cell(0, 0).hits));
}

TEST(PlanTest, WhatReachesAShareIsTheSmallestThatDoes) {
  const Trace trace = ManyBlocks();
  const auto plan = MakePlan(trace, Options());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->reached.size(), 3u);
  for (const Plan::Reached& reached : plan->reached) {
    ASSERT_TRUE(reached.ram_alone.has_value()) << reached.share;
    EXPECT_GE(Share(reached.ram_alone->hits), reached.share * Share(plan->most));
    // A sixteenth less does not.
    PlanOptions less = Options();
    less.ram_bytes = {reached.ram_alone->ram_bytes - reached.ram_alone->ram_bytes / 8};
    less.ssd_bytes = {0};
    const auto below = MakePlan(trace, less);
    ASSERT_TRUE(below.ok());
    EXPECT_LT(Share(below->cells[0].hits), reached.share * Share(plan->most)) << reached.share;
  }
}

TEST(PlanTest, TheNextDoublingIsOfTheBudgetThatReachesNineTenths) {
  const auto plan = MakePlan(ManyBlocks(), Options());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->before.ram_bytes, plan->reached[0].ram_alone->ram_bytes);
  EXPECT_EQ(plan->after.ram_bytes, 2 * plan->before.ram_bytes);
  EXPECT_GT(Share(plan->after.hits), Share(plan->before.hits));
}

TEST(PlanTest, SizesThatAreGivenAreTakenInOrderOnce) {
  PlanOptions options = Options();
  options.ram_bytes = {512 * kMiB, 128 * kMiB, 512 * kMiB};
  options.ssd_bytes = {4096 * kMiB};
  const auto plan = MakePlan(ManyBlocks(), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->ram_bytes, (std::vector<uint64_t>{128 * kMiB, 512 * kMiB}));
  ASSERT_EQ(plan->cells.size(), 2u);
  EXPECT_GT(plan->cells[0].hits.ssd_tokens, 0u);
  for (const Plan::Reached& reached : plan->reached) EXPECT_FALSE(reached.ram_alone.has_value());
}

TEST(PlanTest, BudgetsAndTokensThatCannotBeAreRefused) {
  PlanOptions options = Options();
  options.ram_bytes = {kMiB};
  EXPECT_EQ(MakePlan(ManyBlocks(), options).status().code(), absl::StatusCode::kInvalidArgument);
  options = Options();
  options.shape.bytes_per_token = 0;
  EXPECT_EQ(MakePlan(ManyBlocks(), options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace prefixd::sizing
