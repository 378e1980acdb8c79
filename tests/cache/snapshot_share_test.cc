// Snapshots of states have a share of the RAM for pages: never more, whatever is stored, read back
// from SSD, found after a kill or resized.
#include "tests/cache/mixed_fixture.h"

namespace prefixd::testing {
namespace {

// Nothing but states: what the space has in RAM is what snapshots take.
block::SpaceIdentity StatesOnly() {
  block::SpaceIdentity identity = MixedIdentity(200003);
  identity.groups.erase(identity.groups.begin(), identity.groups.begin() + 2);
  return identity;
}

class SnapshotShareTest : public MixedTest {
 protected:
  void Check() {
    const block::Stats stats = cache_->GetStats();
    ASSERT_GT(stats.snapshot_share_bytes, 0u);
    ASSERT_LE(stats.snapshot_bytes, stats.snapshot_share_bytes);
    ASSERT_EQ(stats.snapshot_bytes, Summary().ram_extent_bytes) << "the gauge is the sum";
  }
  static Tokens Of(uint64_t seed) { return RandomTokens(100 + seed, 120); }
};

TEST_F(SnapshotShareTest, ItIsNeverPassedAndTheGaugeIsTheSum) {
  const block::SpaceIdentity identity = StatesOnly();
  cache::Options options = WithSsd();
  options.snapshot_share = 0.05;
  Open(options);
  block::SpaceHandle space = OpenSpace(identity);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    StoreAll(identity, space, Of(seed));
    Check();
    if (seed % 2 == 1) cache_->Flush(In(10000));
    Check();
  }
  EXPECT_GT(cache_->GetStats().snapshot_bytes, cache_->GetStats().snapshot_share_bytes / 2);
  EXPECT_GT(Counter("snapshots.evicted"), 0u);
  ASSERT_EQ(cache_->Flush(In(10000)).dirty_bytes, 0u);
  Open(options);  // all of them on SSD: each comes in another's place
  space = OpenSpace(identity);
  uint32_t back = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    back += ReadBack(identity, space, Of(seed)) > 0 ? 1 : 0;
    Check();
  }
  EXPECT_GE(back, 3u);
  EXPECT_GT(Counter("pages.promoted"), 0u);
}

// On SSD there are many times what the share holds: each that is read back takes another's place,
// and what is held keeps its place.
TEST_F(SnapshotShareTest, WhatIsReadBackStaysWithinItAlsoWhileItIsHeld) {
  constexpr uint64_t kSequences = 24;
  const block::SpaceIdentity identity = StatesOnly();
  cache::Options options = WithSsd();
  options.snapshot_share = 0.05;
  Open(options);
  block::SpaceHandle space = OpenSpace(identity);
  for (uint64_t seed = 0; seed < kSequences; ++seed) {
    StoreAll(identity, space, Of(seed));
    ASSERT_EQ(cache_->Flush(In(10000)).dirty_bytes, 0u);
  }
  Open(options);
  space = OpenSpace(identity);
  for (uint64_t seed = 0; seed < kSequences; ++seed) {
    EXPECT_GT(ReadBack(identity, space, Of(seed)), 0u) << seed;
    Check();
  }
  ASSERT_EQ(Counter("pages.promoted"), kSequences);

  Open(options);
  space = OpenSpace(identity);
  std::vector<block::LeaseId> held;
  uint32_t refused = 0;
  for (uint64_t seed = 0; seed < kSequences; ++seed) {
    const cache::Acquired acquired = Acquire(space, Of(seed));
    ASSERT_TRUE(acquired.lease);
    held.push_back(acquired.lease);
    Collector got;
    ASSERT_TRUE(
        cache_->Fetch(session_, {.lease = held.back(), .groups = {}}, In(20000), &got).ok());
    ASSERT_EQ(got.ready.size(), 1u);
    if (got.ready[0].usable_tokens == 0) {
      ++refused;
      EXPECT_EQ(got.ready[0].reason, block::ShortenReason::kRamFull);
    }
    Check();
  }
  EXPECT_GT(refused, 0u);
  EXPECT_LT(refused, kSequences);
  for (const block::LeaseId lease : held) {
    ASSERT_TRUE(cache_->Release(session_, {.lease = lease, .used_tokens = 0}).ok());
  }
  for (uint64_t seed = 0; seed < kSequences; ++seed) {
    EXPECT_GT(ReadBack(identity, space, Of(seed)), 0u) << seed << ": it was refused, not lost";
  }
  Check();
}

TEST_F(SnapshotShareTest, WhatAKillLeftIsTakenUpWithinIt) {
  const block::SpaceIdentity identity = StatesOnly();
  LiveAndBeKilled(Shared(), [&] {
    const block::SpaceHandle space = OpenSpace(identity);
    for (uint64_t seed = 0; seed < 6; ++seed) StoreAll(identity, space, Of(seed));
    return std::string();
  });
  cache::Options options = Shared();
  options.snapshot_share = 0.05;
  Open(options);
  OpenSpace(identity);
  Check();
  EXPECT_GT(cache_->GetStats().snapshot_bytes, 0u);
}

}  // namespace
}  // namespace prefixd::testing
