// The simulated fleet against counts by hand, and its RAM against the simulation of one cache.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bench/fleet/populations.h"
#include "bench/fleet/recent_blocks.h"
#include "bench/fleet/router.h"
#include "bench/fleet/simulation.h"
#include "bench/trace/file.h"
#include "bench/trace/simulation.h"

namespace prefixd::bench {
namespace {

using Path = std::vector<FleetBlock>;
constexpr int64_t kSecond = 1'000'000;

// Two hosts with room for two blocks each, in turn; blocks of 512 tokens and 51,200 bytes.
FleetShape Small() {
  return {.hosts = 2,
          .bytes_per_token = 100,
          .ram_bytes = 2 * 51'200,
          .far_bytes = 8 * 51'200,
          .prefill_tokens_per_s = 512};
}
FleetRules InTurn() {
  FleetRules rules;
  rules.routing = Routing::kRoundRobin;
  return rules;
}

TEST(FleetTest, WhatOneHostComputedTheOtherLoads) {
  Fleet fleet(Small(), InTurn(), 1);
  fleet.Serve(0, Path{1, 2});             // computed on the first host in 2 s, then written
  fleet.Serve(10 * kSecond, Path{1, 2});  // loaded by the second
  fleet.Serve(20 * kSecond, Path{1, 3});  // 1 is in the first one's RAM
  const FleetResult& result = fleet.result();
  EXPECT_EQ(result.none, 512u * (2 + 0 + 1));
  EXPECT_EQ(result.far, 512u * 2);
  EXPECT_EQ(result.local, 512u * 1);
  EXPECT_EQ(result.read_bytes, 51'200u * 2);
  EXPECT_EQ(result.written_bytes, 51'200u * 2);
  EXPECT_EQ(result.duration_us, 20 * kSecond);
  EXPECT_NEAR(result.first_token_us, 3e6, 1e4);
}

TEST(FleetTest, WithoutASharedTierEachHostComputes) {
  FleetRules rules = InTurn();
  rules.far = false;
  Fleet fleet(Small(), rules, 1);
  for (int i = 0; i < 4; ++i) fleet.Serve(i * 10 * kSecond, Path{1, 2});
  EXPECT_EQ(fleet.result().none, 512u * 4);
  EXPECT_EQ(fleet.result().local, 512u * 4);
  EXPECT_EQ(fleet.result().written_bytes + fleet.result().read_bytes, 0u);
}

TEST(FleetTest, R7WhatTwoHostsComputeAtOnceIsWrittenOnceIfItIsAskedForFirst) {
  for (const bool first : {true, false}) {
    FleetRules rules = InTurn();
    rules.exists_first = first;
    Fleet fleet(Small(), rules, 1);
    fleet.Serve(0, Path{1, 2});
    fleet.Serve(1, Path{1, 2});  // before the first has computed it
    fleet.Serve(10 * kSecond, Path{});
    EXPECT_EQ(fleet.result().written_bytes, 51'200u * (first ? 2 : 4));
    EXPECT_EQ(fleet.result().written_again, 51'200u * (first ? 0 : 2));
  }
}

TEST(FleetTest, BeyondTheWriteBudgetOnlyWhatIsShallowOrComesAgainIsWritten) {
  FleetRules rules = InTurn();
  rules.write_bytes_per_s = 1;  // the first block overdraws it for a day
  rules.write_window = std::chrono::seconds(1);
  rules.shallow_tokens = 1024;
  FleetShape shape = Small();
  shape.hosts = 1;
  Fleet fleet(shape, rules, 1);
  fleet.Serve(0, Path{1, 2, 3, 4});
  fleet.Serve(100 * kSecond, Path{});
  EXPECT_EQ(fleet.result().written_bytes, 51'200u * 2);  // 1 and 2 begin in the first 1024 tokens
  fleet.Serve(100 * kSecond, Path{1, 2, 3, 4});
  fleet.Serve(200 * kSecond, Path{});
  EXPECT_EQ(fleet.result().written_bytes, 51'200u * 3);  // 3 comes again, 4 is offered now
}

TEST(FleetTest, WhatLoadsSlowerThanItIsComputedIsComputed) {
  FleetShape shape = Small();
  shape.prefill_tokens_per_s = 5e6;  // a block in .1 ms; a round trip alone takes longer
  for (const bool cost : {true, false}) {
    FleetRules rules = InTurn();
    rules.cost = cost;
    Fleet fleet(shape, rules, 1);
    fleet.Serve(0, Path{1, 2});
    fleet.Serve(kSecond, Path{1, 2});
    EXPECT_EQ(fleet.result().far, cost ? 0u : 1024u);
    EXPECT_EQ(fleet.result().not_worth, cost ? 1024u : 0u);
  }
}

TEST(FleetTest, ABlockThatTheTierLostIsWrittenAgainOnlyByAHostThatForgets) {
  for (const bool forgets : {false, true}) {
    FleetRules rules = InTurn();
    rules.forgets_absent = forgets;
    FleetShape shape = Small();
    shape.hosts = 1;
    shape.ram_bytes = 51'200;
    shape.far_bytes = 51'200;
    Fleet fleet(shape, rules, 1);
    fleet.Serve(0, Path{1});
    fleet.Serve(10 * kSecond, Path{2});  // takes the place of 1, here and there
    fleet.Serve(20 * kSecond, Path{1});
    fleet.Serve(30 * kSecond, Path{});
    EXPECT_EQ(fleet.result().written_bytes, 51'200u * (forgets ? 3 : 2));
  }
}

TEST(FleetTest, ANetworkThatIsBehindMakesLoadsLateAndTheyAreComputed) {
  FleetShape shape = Small();
  shape.hosts = 3;
  shape.storage_bytes_per_s = 51'200 / 4.0;  // a block in 4 s
  FleetRules rules = InTurn();
  rules.cost = false;
  Fleet fleet(shape, rules, 1);
  fleet.Serve(0, Path{1});
  fleet.Serve(100 * kSecond, Path{1});  // by the second host, in 4 s
  fleet.Serve(100 * kSecond, Path{1});  // by the third, which gives up after 2 s
  EXPECT_EQ(fleet.result().far, 512u);
  EXPECT_EQ(fleet.result().late, 1u);
  EXPECT_EQ(fleet.result().none, 2 * 512u);
  EXPECT_NEAR(fleet.result().first_token_us, 1e6 + 4e6 + (2e6 + 1e6), 1e4);
}

TEST(FleetLinkTest, WhatIsSentWaitsForAllBeforeIt) {
  FleetLink link(1e6);
  EXPECT_EQ(link.Send(0, 4'000'000), 4e6);
  EXPECT_EQ(link.WaitAt(kSecond), 3e6);
  EXPECT_EQ(link.Send(kSecond, 1'000'000), 4e6);
  EXPECT_EQ(link.WaitAt(9 * kSecond), 0);
}

TEST(FleetTest, TheSameSeedGivesTheSameResult) {
  const auto trace =
      ReadTrace(PREFIXD_SOURCE_DIR "/tests/data/traces/mooncake_conversation.head200.jsonl.zst");
  ASSERT_TRUE(trace.ok()) << trace.status();
  std::vector<FleetResult> results;
  for (int run = 0; run < 2; ++run) {
    Populations load(*trace, {.populations = 3, .most_blocks = 2'000, .seed = 7});
    Fleet fleet({.hosts = 5}, {}, 7);
    for (const auto& request : load.requests()) fleet.Serve(request.at_us, load.PathOf(request));
    results.push_back(fleet.result());
  }
  EXPECT_GT(results[0].far + results[0].local, 0u);
  EXPECT_EQ(results[0].far, results[1].far);
  EXPECT_EQ(results[0].local, results[1].local);
  EXPECT_EQ(results[0].first_token_us, results[1].first_token_us);
}

TEST(PopulationsTest, EachAsksForItsOwnBlocksAtTheWantedRate) {
  Trace trace;
  trace.unique = 3;
  trace.references = {0, 1, 0, 2};
  trace.requests = {{.at_ms = 100, .first = 0, .blocks = 2},
                    {.at_ms = 1100, .first = 2, .blocks = 2}};
  Populations load(trace, {.populations = 2, .most_blocks = 9, .tokens_per_s = 1024, .seed = 3});
  ASSERT_EQ(load.requests().size(), 4u);
  std::vector<Path> paths(2);
  for (const auto& request : load.requests()) {
    if (request.number == 1) paths[request.population] = load.PathOf(request);
  }
  EXPECT_EQ(paths[0], (Path{0, 2}));
  EXPECT_EQ(paths[1], (Path{3, 5}));
  Populations one(trace, {.populations = 1, .most_blocks = 9, .tokens_per_s = 1024});
  EXPECT_EQ(one.requests()[0].at_us, 0);
  EXPECT_EQ(one.requests()[1].at_us, 2 * kSecond);  // 2048 tokens at 1024 a second
}

// An LRU list whose paths are refreshed leaf to root is leaf-first LRU.
TEST(RecentBlocksTest, ItHitsWhatLeafFirstLruHitsOnARealTrace) {
  const auto trace =
      ReadTrace(PREFIXD_SOURCE_DIR "/tests/data/traces/mooncake_conversation.head200.jsonl.zst");
  ASSERT_TRUE(trace.ok()) << trace.status();
  for (const uint64_t capacity : {5u, 40u, 300u, 2'000u}) {
    RecentBlocks ram(capacity);
    uint64_t hits = 0;
    for (const Trace::Request& request : trace->requests) {
      const auto blocks = trace->blocks(request);
      const Path path(blocks.begin(), blocks.end());
      hits += ram.Leading(path);
      ram.Use(path);
      EXPECT_LE(ram.size(), capacity);
    }
    EXPECT_EQ(hits, SimulateLeafLru(*trace, capacity).ram_hits) << capacity;
  }
}

TEST(RecentBlocksTest, TheOldestGoesAndWhatIsTouchedStays) {
  RecentBlocks blocks(2);
  blocks.Add(1, 10);
  blocks.Add(2, 20);
  EXPECT_TRUE(blocks.Touch(1, 30));
  EXPECT_EQ(blocks.at_us(1), 30);
  blocks.Add(3, 40);
  EXPECT_TRUE(blocks.Contains(1));
  EXPECT_FALSE(blocks.Touch(2));
  blocks.Forget(1);
  EXPECT_EQ(blocks.size(), 1u);
}

TEST(RecentBlocksTest, OfAPathTheLeafGoesFirst) {
  RecentBlocks ram(3);
  ram.Use(Path{1, 2, 3});
  ram.Use(Path{4});
  EXPECT_EQ(ram.Leading(Path{1, 2, 3}), 2u);
}

TEST(RouterTest, APrefixOfLessThanHalfDoesNotDecide) {
  Router router(Routing::kPrefix, 1'000, 9);
  const uint32_t first = router.HostOf(Path{1, 2, 3});
  EXPECT_NE(router.HostOf(Path{1, 2, 10, 11, 12}), first);
}

TEST(RouterTest, APrefixGoesWhereItWasUnlessThatHostHasTooMuch) {
  Router router(Routing::kPrefix, 4, 9);
  const uint32_t first = router.HostOf(Path{1, 2, 3});
  EXPECT_EQ(router.HostOf(Path{1, 2, 3, 4}), first);
  std::vector<uint32_t> hosts(4);
  for (FleetBlock leaf = 100; leaf < 140; ++leaf) {
    ++hosts[router.HostOf(Path{1, 2, leaf, leaf + 1000, leaf + 2000})];
  }
  for (const uint32_t requests : hosts) EXPECT_GT(requests, 4u);
  // The same prefix for ever: others take over.
  std::vector<uint32_t> same(4);
  for (int i = 0; i < 200; ++i) ++same[router.HostOf(Path{1, 2, 3})];
  for (const uint32_t requests : same) EXPECT_GT(requests, 10u);
  Router in_turn(Routing::kRoundRobin, 3, 0);
  EXPECT_EQ(in_turn.HostOf(Path{1}), 0u);
  EXPECT_EQ(in_turn.HostOf(Path{1}), 1u);
}

}  // namespace
}  // namespace prefixd::bench
