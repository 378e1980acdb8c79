// When a server that failed is asked again.
#include "remote/breaker.h"

#include "gtest/gtest.h"

namespace prefixd::remote {
namespace {

class BreakerTest : public ::testing::Test {
 protected:
  void Open() {
    for (int i = 0; i < Breaker::kFailures; ++i) breaker_.Failed("no answer");
  }
  int64_t WaitUs() const { return breaker_.next_try_us() - clock_.MonotonicMicros(); }

  base::FakeClock clock_;
  Breaker breaker_{&clock_, 1};
};

TEST_F(BreakerTest, OpensAfterThreeFailuresInARow) {
  breaker_.Failed("a");
  breaker_.Failed("b");
  breaker_.Succeeded();
  breaker_.Failed("c");
  breaker_.Failed("d");
  EXPECT_FALSE(breaker_.open());
  breaker_.Failed("e");
  EXPECT_TRUE(breaker_.open());
  EXPECT_EQ(breaker_.why(), "e");
  EXPECT_EQ(breaker_.failed_us(), clock_.MonotonicMicros());
}

TEST_F(BreakerTest, WaitsFrom100MillisecondsDoublingTo10SecondsWithJitter) {
  Open();
  int64_t most = Breaker::kFirstWaitUs;
  bool jitter = false;
  for (int i = 0; i < 12; ++i) {
    EXPECT_GE(WaitUs(), most * 3 / 4);
    EXPECT_LE(WaitUs(), most);
    jitter = jitter || WaitUs() != most;
    EXPECT_FALSE(breaker_.TakeProbe());
    clock_.Advance(WaitUs());
    ASSERT_TRUE(breaker_.TakeProbe());
    breaker_.Probed(false, "still");
    most = std::min(2 * most, Breaker::kLongestWaitUs);
  }
  EXPECT_EQ(most, 10'000'000);
  EXPECT_TRUE(jitter);
}

TEST_F(BreakerTest, OneProbeIsDueAtATime) {
  Open();
  clock_.Advance(Breaker::kFirstWaitUs);
  EXPECT_TRUE(breaker_.TakeProbe());
  EXPECT_FALSE(breaker_.TakeProbe());
}

TEST_F(BreakerTest, AfterAGoodProbeOneFailureOpensItForLongerAndOneSuccessClosesIt) {
  Open();
  clock_.Advance(Breaker::kFirstWaitUs);
  ASSERT_TRUE(breaker_.TakeProbe());
  breaker_.Probed(true, "");
  EXPECT_FALSE(breaker_.open());
  breaker_.Failed("again");
  EXPECT_TRUE(breaker_.open());
  EXPECT_GE(WaitUs(), 150'000);
  clock_.Advance(WaitUs());
  ASSERT_TRUE(breaker_.TakeProbe());
  breaker_.Probed(true, "");
  breaker_.Succeeded();
  breaker_.Failed("a");
  breaker_.Failed("b");
  EXPECT_FALSE(breaker_.open());
  breaker_.Failed("c");
  EXPECT_LE(WaitUs(), Breaker::kFirstWaitUs);
}

TEST_F(BreakerTest, ASuccessThatBeganBeforeDoesNotCloseIt) {
  Open();
  breaker_.Succeeded();
  EXPECT_TRUE(breaker_.open());
}

}  // namespace
}  // namespace prefixd::remote
