// What a hit was worth: tokens and seconds, whatever workers tell.
#include "cache/tables/worth.h"

#include <cmath>
#include <limits>

#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

using cache::BelievableRate;
using cache::Worth;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

TEST(WorthTest, ARateIsTenthsToTenMillionsOfTokensPerSecond) {
  EXPECT_EQ(BelievableRate(900), 900);
  EXPECT_EQ(BelievableRate(1e7), 1e7);
  EXPECT_EQ(BelievableRate(1e-300), 0.1);
  for (const double none : {0.0, -0.0, -5.0, 1.1e7, 1e300, kInfinity, -kInfinity, kNan})
    EXPECT_EQ(BelievableRate(none), 0) << none;
}

TEST(WorthTest, TheReleasesOwnRateIsFirstThenTheLookupsThenTheSpaces) {
  Worth worth;
  const block::SpaceHandle space{1}, other{2};
  const auto seconds = [&](block::SpaceHandle in, double told, double looked_up) {
    return worth.Seconds(
        {.space = in, .used_tokens = 1000, .told_rate = told, .looked_up_rate = looked_up});
  };
  EXPECT_EQ(seconds(space, 0, 0), 0) << "no rate is known: nothing is claimed";
  EXPECT_EQ(seconds(space, 0, 500), 2);
  EXPECT_EQ(seconds(space, 0, 0), 0) << "what a lookup told is for its lease";
  EXPECT_EQ(seconds(space, 1000, 500), 1);
  EXPECT_EQ(seconds(space, 0, 0), 1);
  EXPECT_EQ(seconds(space, 0, 500), 2);
  EXPECT_EQ(seconds(other, 0, 0), 0) << "another space's";
  EXPECT_EQ(seconds(space, 250, 0), 4);
  EXPECT_EQ(seconds(space, 0, 0), 4) << "the last that was told";
  for (const double none : {-5.0, 1e9, kInfinity, kNan}) EXPECT_EQ(seconds(space, none, none), 4);
  EXPECT_EQ(seconds({}, 0, 0), 0);
  EXPECT_EQ(seconds({}, 100, 0), 10);
  EXPECT_EQ(seconds({}, 0, 0), 0);
}

TEST(WorthTest, LoadingCostsWhatItTookAndNoMoreThanTheLeaseIsOld) {
  Worth worth;
  const auto seconds = [&](uint32_t used, double told, uint64_t load_us, uint64_t age_us) {
    return worth.Seconds({.space = {1},
                          .used_tokens = used,
                          .told_rate = told,
                          .load_us = load_us,
                          .lease_age_us = age_us});
  };
  EXPECT_DOUBLE_EQ(seconds(1000, 1000, 250'000, 300'000), 0.75);
  EXPECT_DOUBLE_EQ(seconds(0, 1000, 250'000, 300'000), -0.25) << "told, and for nothing";
  EXPECT_EQ(seconds(0, 0, 250'000, 300'000), 0) << "nobody said that it waited";
  EXPECT_DOUBLE_EQ(seconds(1000, 1000, ~uint64_t{0}, 3'000'000), -3) << "and a second for the call";
  EXPECT_DOUBLE_EQ(seconds(~uint32_t{0}, 1e-9, 0, 0), 42949672950) << "0.1 tokens a second";
}

class CountedWorthTest : public CacheTest {
 protected:
  void SetUp() override {
    Open(RamOnly());
    space_ = OpenSpace(identity_);
    ASSERT_TRUE(Store(identity_, space_, tokens_).ok());
  }
  block::LeaseId Lease(double looked_up_rate = 0) {
    cache::Request request;
    request.space = space_;
    request.tokens = tokens_;
    request.prefill_tokens_per_s = looked_up_rate;
    return cache_->Acquire(session_, request, In(10000))->lease;
  }
  void Release(block::LeaseId lease, uint32_t used, double rate = 0) {
    ASSERT_TRUE(
        cache_
            ->Release(session_, {.lease = lease, .used_tokens = used, .prefill_tokens_per_s = rate})
            .ok());
  }
  double Saved() { return cache_->GetStats().seconds_saved; }

  const block::SpaceIdentity identity_ = SmallIdentity();
  const Tokens tokens_ = RandomTokens(3, 100);
  block::SpaceHandle space_;
};

TEST_F(CountedWorthTest, AReleaseWithoutARateCountsWithTheLookupsOrTheLastOfItsSpace) {
  Release(Lease(), 100);
  EXPECT_EQ(Counter("tokens.used"), 100u);
  EXPECT_EQ(Saved(), 0);
  Release(Lease(/*looked_up_rate=*/50), 100);
  EXPECT_DOUBLE_EQ(Saved(), 2);
  Release(Lease(), 100, 200);
  EXPECT_DOUBLE_EQ(Saved(), 2.5);
  Release(Lease(), 100);
  EXPECT_DOUBLE_EQ(Saved(), 3);
  EXPECT_EQ(Counter("tokens.used"), 400u);
}

TEST_F(CountedWorthTest, NoSessionCanMakeTheSumWorthless) {
  Release(Lease(), ~uint32_t{0}, 100);
  EXPECT_EQ(Counter("tokens.used"), 100u) << "at most what the lease has";
  for (const double rate : {kNan, kInfinity, -1.0, 1e8, 0.0}) Release(Lease(rate), 100, rate);
  EXPECT_DOUBLE_EQ(Saved(), 6) << "with the rate that was told before";
  Release(Lease(), 100, 1e-300);
  EXPECT_DOUBLE_EQ(Saved(), 1006);
}

}  // namespace
}  // namespace prefixd::testing
