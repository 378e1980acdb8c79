// What requests ask for and get is counted by space and by tier.
#include "cache/tables/space_tokens.h"

#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

class SpaceTokensTest : public CacheTest {
 protected:
  block::SpaceTokens Of(block::SpaceHandle space) const {
    for (const block::SpaceSummary& summary : cache_->ListSpaces()) {
      if (summary.handle == space) return summary.tokens;
    }
    return {};
  }
  uint64_t Counted(const std::string& name) const {
    const block::Stats stats = cache_->GetStats();
    for (const block::NamedCount& count : stats.counters) {
      if (count.name == name) return count.value;
    }
    return 0;
  }
  void Release(const cache::Acquired& acquired, uint32_t used) {
    ASSERT_TRUE(cache_->Release(session_, {.lease = acquired.lease, .used_tokens = used}).ok());
  }
};

TEST_F(SpaceTokensTest, EachSpaceCountsItsOwnLookups) {
  Open(RamOnly());
  const block::SpaceIdentity first = SmallIdentity(), second = SmallIdentity(32);
  const block::SpaceHandle one = OpenSpace(first), two = OpenSpace(second);
  const Tokens tokens = RandomTokens(1, 200);
  ASSERT_TRUE(Store(first, one, tokens).ok());
  const cache::Acquired hit = Acquire(one, tokens);
  EXPECT_FALSE(Acquire(two, tokens).lease);
  Release(hit, 150);
  const block::SpaceTokens expected = {
      .requested = 200,
      .matched = hit.match.matched_tokens,
      .restorable = {.ram = hit.match.restorable_tokens, .ssd = 0, .remote = 0},
      .used = {.ram = 150, .ssd = 0, .remote = 0}};
  EXPECT_EQ(Of(one), expected);
  block::SpaceTokens missed;
  missed.requested = 200;
  EXPECT_EQ(Of(two), missed);
  EXPECT_EQ(Counted("tokens.requested"), 400u);
  EXPECT_EQ(Counted("tokens.used.ram"), 150u);
}

TEST_F(SpaceTokensTest, TokensThatCameFromSsdCountThere) {
  Open(WithSsd());
  const block::SpaceIdentity identity = SmallIdentity();
  const block::SpaceHandle space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(2, 200);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  Open(WithSsd());  // private memory: only the SSD has it
  const block::SpaceHandle again = OpenSpace(identity);
  const cache::Acquired hit = Acquire(again, tokens);
  EXPECT_EQ(FetchAndCheck(identity, hit, tokens), 200u);
  Release(hit, 200);
  EXPECT_EQ(Of(again).restorable, (block::TierTokens{.ram = 0, .ssd = 200, .remote = 0}));
  EXPECT_EQ(Of(again).used, (block::TierTokens{.ram = 0, .ssd = 200, .remote = 0}));
  EXPECT_EQ(Counted("tokens.used.ssd"), 200u);
}

TEST_F(SpaceTokensTest, WhatWasUsedOfALeaseIsCountedInRamFirst) {
  const block::TierTokens leased = {.ram = 100, .ssd = 50, .remote = 30};
  EXPECT_EQ(cache::SplitUsed(80, leased), (block::TierTokens{80, 0, 0}));
  EXPECT_EQ(cache::SplitUsed(120, leased), (block::TierTokens{100, 20, 0}));
  EXPECT_EQ(cache::SplitUsed(180, leased), leased);
}

TEST_F(SpaceTokensTest, LookupsCountTheTimeOfEachPhase) {
  Open(RamOnly());
  const block::SpaceIdentity identity = SmallIdentity();
  const block::SpaceHandle space = OpenSpace(identity);
  for (int i = 0; i < 3; ++i) Acquire(space, RandomTokens(3, 100));
  const block::Stats stats = cache_->GetStats();
  std::map<std::string, uint64_t> counts;
  for (const block::NamedLatency& latency : stats.latencies) {
    counts[latency.name] = latency.histogram.count;
  }
  EXPECT_EQ(counts["acquire.match"], 3u);
  EXPECT_EQ(counts["acquire.room"], 3u);
  EXPECT_FALSE(counts.contains("acquire.wait")) << "nobody asked to wait";
}

}  // namespace
}  // namespace prefixd::testing
