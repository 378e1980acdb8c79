// Differences between samples, made-up ones.
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "client/cli/top/history.h"
#include "tests/cli/top_samples.h"

namespace prefixd::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

TEST(HistoryTest, OneSampleIsNoPoint) {
  BusyDaemon daemon;
  daemon.Serve(1'000, 900);
  History history;
  history.Add(10, daemon.Stats(500));
  EXPECT_THAT(history.points(), IsEmpty());
  EXPECT_EQ(history.Last(60).tokens.requested, 0u);
}

TEST(HistoryTest, S2HitRateIsThatOfTheIntervalNotThatSinceTheStart) {
  BusyDaemon daemon;
  daemon.Serve(1'000'000, 0);  // before anybody watched
  History history;
  history.Add(10, daemon.Stats(500));
  daemon.Serve(100, 60, 20);
  history.Add(12, daemon.Stats(502));
  ASSERT_THAT(history.points(), SizeIs(1));
  const Flow& flow = history.points()[0];
  EXPECT_EQ(flow.tokens,
            (TokenFlow{.requested = 100, .matched = 80, .ram = 60, .ssd = 20, .used = 80}));
  EXPECT_DOUBLE_EQ(HitRate(flow.tokens), 0.8);
  EXPECT_DOUBLE_EQ(flow.seconds, 2);
  EXPECT_EQ(flow.requests, 1u);
}

TEST(HistoryTest, S2ADaemonThatStartedAgainCountsFromZero) {
  BusyDaemon daemon;
  daemon.Serve(1'000, 900);
  History history;
  history.Add(10, daemon.Stats(500));
  daemon.Restart();
  daemon.Serve(40, 10);
  history.Add(15, daemon.Stats(3));
  ASSERT_THAT(history.points(), SizeIs(1));
  EXPECT_TRUE(history.points()[0].restarted);
  EXPECT_EQ(history.points()[0].tokens.requested, 40u);
  EXPECT_EQ(history.points()[0].tokens.ram, 10u);
  EXPECT_DOUBLE_EQ(history.points()[0].seconds, 5);
}

TEST(HistoryTest, ADaemonThatStartedAgainAndCountsMoreThanBeforeCountsFromZeroToo) {
  BusyDaemon daemon;
  daemon.Serve(100, 0);
  History history;
  history.Add(10, daemon.Stats(500));
  daemon.Restart();
  daemon.Serve(300, 300);
  history.Add(1'000, daemon.Stats(900));
  EXPECT_EQ(history.points()[0].tokens.requested, 300u);
  EXPECT_EQ(history.points()[0].tokens.ram, 300u);
}

TEST(HistoryTest, ASpaceThatWasClearedAndOpenedAgainCountsFromZero) {
  BusyDaemon daemon;
  v1::GetStatsReply before = daemon.Stats(500), after = daemon.Stats(501);
  before.mutable_spaces(0)->mutable_tokens()->set_requested(1'000);
  after.mutable_spaces(0)->mutable_tokens()->set_requested(30);
  History history;
  history.Add(10, before);
  history.Add(11, after);
  EXPECT_THAT(history.points()[0].spaces,
              ElementsAre(Pair(SampleId(0x3f), TokenFlow{.requested = 30})));
}

TEST(HistoryTest, SpacesThatNobodyAskedForTakeNoMemory) {
  BusyDaemon daemon;
  daemon.Serve(10, 0);
  History history;
  history.Add(10, daemon.Stats(500));
  history.Add(11, daemon.Stats(501));
  EXPECT_THAT(history.points()[0].spaces, IsEmpty());
}

TEST(HistoryTest, LastIsTheSumOfWhatFitsAndAtLeastTheNewest) {
  BusyDaemon daemon;
  History history;
  for (int second = 0; second <= 90; ++second) {
    daemon.Serve(static_cast<uint64_t>(second), 1);
    history.Add(second, daemon.Stats(second + 1));
  }
  EXPECT_EQ(history.Last(0).tokens.requested, 90u);
  EXPECT_EQ(history.Last(2).tokens.requested, 90u + 89u);
  EXPECT_DOUBLE_EQ(history.Last(60).seconds, 60);
  EXPECT_DOUBLE_EQ(history.Last(1e9).seconds, 90);
}

TEST(HistoryTest, KeepsNoMoreThanItsPoints) {
  const BusyDaemon daemon;
  History history;
  for (size_t i = 0; i < History::kMostPoints + 10; ++i) {
    history.Add(static_cast<double>(i), daemon.Stats(static_cast<double>(i)));
  }
  EXPECT_THAT(history.points(), SizeIs(History::kMostPoints));
}

TEST(HistoryTest, WithoutRequestsThereIsNoHitRate) {
  EXPECT_DOUBLE_EQ(HitRate({}), -1);
  EXPECT_DOUBLE_EQ(HitRate({.requested = 10}), 0);
}

TEST(HistoryTest, MedianIdleTimeIsInsideTheBucketThatHasTheMiddle) {
  EXPECT_DOUBLE_EQ(MedianIdleMs({}), -1);
  EXPECT_DOUBLE_EQ(MedianIdleMs({0, 0, 0}), -1);
  EXPECT_DOUBLE_EQ(MedianIdleMs({0, 0, 10}), 6);  // half of [4, 8)
  EXPECT_DOUBLE_EQ(MedianIdleMs({1, 0, 0, 0, 99}), 16 * (1 + 49.0 / 99));
  EXPECT_DOUBLE_EQ(MedianIdleMs({5, 5}), 2);  // the end of [1, 2)
}

}  // namespace
}  // namespace prefixd::cli
