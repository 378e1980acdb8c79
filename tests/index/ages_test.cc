// How old blocks are when they are read and when RAM gives them up.
#include "index/ages.h"

#include "index/timeline.h"
#include "index_fixture.h"

namespace prefixd::index {
namespace {

constexpr int64_t kSecond = 1'000'000;

class AgesTest : public ClockedIndexTest {
 protected:
  block::BlockAges Ages() const { return index_.CountedAges(); }
  void Read(const Tokens& tokens) {
    const Acquired acquired = Acquire(tokens);
    ASSERT_TRUE(acquired.lease);
    ASSERT_TRUE(index_.Release(acquired.lease).ok());
  }
};

TEST_F(AgesTest, EachBlockThatARequestReadsCountsItsGapAndItsAge) {
  const Tokens tokens = Count(1, 32);
  Store(tokens);
  Clock().Advance(10 * kSecond);
  Read(tokens);
  Clock().Advance(30 * kSecond);
  Read(tokens);
  const block::BlockAges ages = Ages();
  EXPECT_EQ(ages.reuse_gap.count, 4u);
  EXPECT_EQ(ages.reuse_gap.sum_ms, 2u * 10'000 + 2u * 30'000);
  EXPECT_EQ(ages.reuse_gap.buckets[13], 2u) << "8.2 to 16.4 s";
  EXPECT_EQ(ages.reuse_gap.buckets[14], 2u) << "16.4 to 32.8 s";
  EXPECT_EQ(ages.age_at_hit.sum_ms, 2u * 10'000 + 2u * 40'000);
  EXPECT_EQ(ages.idle_at_eviction.count, 0u);
}

TEST_F(AgesTest, ABlockThatRamGivesUpCountsWhenItWasUsedAndWhenItWasStored) {
  const Tokens tokens = Count(1, 32);
  Store(tokens);
  Clock().Advance(10 * kSecond);
  Read(tokens);
  Clock().Advance(5 * kSecond);
  SpillAll();
  ASSERT_TRUE(index_.EvictOne(false).has_value());
  EXPECT_EQ(Ages().idle_at_eviction.count, 1u);
  EXPECT_EQ(Ages().idle_at_eviction.sum_ms, 5'000u);
  EXPECT_EQ(Ages().lifetime_at_eviction.sum_ms, 15'000u);
  EvictAll();
  EXPECT_EQ(Ages().idle_at_eviction.count, 2u) << "each block once";
}

TEST_F(AgesTest, AnAnswerThatTakesNoHoldAndAPinCountNothing) {
  const Tokens tokens = Count(1, 32);
  Store(tokens);
  EXPECT_EQ(Match(tokens).restorable_tokens, 32u);
  Acquire(tokens, {.reads = false});
  EXPECT_EQ(Ages().reuse_gap.count, 0u);
}

TEST_F(AgesTest, WhatAnEarlierDaemonUsedHasNoAge) {
  const Tokens tokens = Count(1, 32);
  Store(tokens);
  index_.StampFrom(1'000'000);  // as when the SSD tier opens: earlier stamps are another daemon's
  Clock().Advance(10 * kSecond);
  Read(tokens);
  EXPECT_EQ(Ages().reuse_gap.count, 0u);
  Clock().Advance(7 * kSecond);
  Read(tokens);
  EXPECT_EQ(Ages().reuse_gap.count, 2u);
  EXPECT_EQ(Ages().reuse_gap.sum_ms, 14'000u) << "from then on it has";
}

TEST(TimelineTest, ANumberIsDatedToAnEighthOfItsAge) {
  Timeline timeline;
  std::vector<int64_t> drawn;  // number i + 100
  int64_t now = 5;
  for (uint64_t i = 0; i < 300'000; ++i) {
    now += static_cast<int64_t>(i * 7919 % 20'011);  // 10 ms, on average: 50 minutes
    if (i % 1000 == 0) now += 3 * kSecond;
    timeline.Note(i + 100, now);
    drawn.push_back(now);
  }
  const uint64_t latest = drawn.size() + 99;
  for (uint64_t i = 0; i < drawn.size(); i += 37) {
    const auto at = timeline.At(i + 100, latest);
    ASSERT_TRUE(at.has_value()) << i;
    const int64_t age = now - drawn[i];
    ASSERT_NEAR(static_cast<double>(*at), static_cast<double>(drawn[i]),
                50e3 + static_cast<double>(age) / 8)
        << i;
  }
}

TEST(TimelineTest, NumbersThatItDidNotSeeHaveNoTime) {
  Timeline timeline;
  EXPECT_FALSE(timeline.At(5, 5).has_value());
  timeline.Note(~uint64_t{0}, 7);  // numbers may wrap
  timeline.Note(3, 100'007);
  EXPECT_EQ(timeline.At(~uint64_t{0}, 3), 7);
  EXPECT_EQ(timeline.At(2, 3), 7);
  EXPECT_EQ(timeline.At(3, 3), 100'007);
  EXPECT_FALSE(timeline.At(4, 3).has_value()) << "not drawn yet: another life's";
  EXPECT_FALSE(timeline.At(~uint64_t{0} - 1, 3).has_value()) << "drawn before";
  timeline.Restart();
  EXPECT_FALSE(timeline.At(3, 3).has_value());
}

}  // namespace
}  // namespace prefixd::index
