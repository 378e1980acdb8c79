// Leases of one sequence hold its pages together, which changes nothing but the time it takes.
#include <gmock/gmock.h>

#include "index_fixture.h"

namespace prefixd::index {
namespace {

class ShareTest : public ClockedIndexTest {
 protected:
  void TearDown() override {
    IndexTest::TearDown();
    EndSession(kMe);
    EndSession(kOther);
    EXPECT_EQ(index_.Counts().leased_bytes, 0u);
    EXPECT_EQ(index_.Counts().table_bytes, 0u);
    EvictAll();
    EXPECT_EQ(Summary().blocks, 0u) << "something is still held";
    IndexTest::TearDown();
  }
  uint64_t Holders(const PageInfo& page) { return MarksOf(page.extent).ReadHolders(); }

  const Tokens stored_ = Count(1, 48);
};

TEST_F(ShareTest, PagesStayUntilTheLastLeaseGoesWhicheverThatIs) {
  Store(stored_);
  for (const bool first_goes_first : {true, false}) {
    const Acquired first = Acquire(stored_), second = Acquire(stored_, {}, kOther);
    ASSERT_TRUE(index_.Validate().ok()) << index_.Validate();
    EXPECT_EQ(index_.Counts().leased_bytes, 3 * block::kExtentUnit);
    EXPECT_TRUE(index_.Release(first_goes_first ? first.lease : second.lease).ok());
    EvictAll();
    EXPECT_TRUE(index_.TakeFreed().empty());
    EXPECT_TRUE(index_.Release(first_goes_first ? second.lease : first.lease).ok());
    EXPECT_EQ(index_.Counts().leased_bytes, 0u);
  }
}

TEST_F(ShareTest, EveryReaderHasItsBitUntilTheLastOneGoes) {
  Store(stored_);
  const Acquired first = Acquire(stored_, {.slot = 3});
  const Acquired second = Acquire(stored_, {.slot = 5}, kOther);
  for (const PageInfo& page : first.pages) EXPECT_EQ(Holders(page), 0b101000u);
  EXPECT_TRUE(index_.Release(first.lease).ok());
  for (const PageInfo& page : first.pages) EXPECT_NE(Holders(page) & 0b100000u, 0u);
  EXPECT_TRUE(index_.Release(second.lease).ok());
  for (const PageInfo& page : first.pages) EXPECT_EQ(Holders(page), 0u);
}

TEST_F(ShareTest, WhatIsEvictedFirstIsWhatTheLatestRequestsDidNotReadEvenIfTheyOnlyJoined) {
  const Tokens other = Count(1000, 48);
  Store(stored_);
  Store(other);
  const Acquired first = Acquire(stored_), of_other = Acquire(other), joined = Acquire(stored_);
  for (const Acquired& held : {joined, of_other, first}) {
    EXPECT_TRUE(index_.Release(held.lease).ok());
  }
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(index_.EvictOne(true).has_value());
  EXPECT_EQ(Match(other).restorable_tokens, 0u);
  EXPECT_EQ(Match(stored_).restorable_tokens, 48u);
  EXPECT_TRUE(index_.EvictOne(true).has_value());
  EXPECT_EQ(Match(stored_).restorable_tokens, 32u) << "the prefix outlives what follows it";
}

TEST_F(ShareTest, AUseOfPartOfThePathInBetweenIsNotForgotten) {
  const Tokens other = Count(1000, 16);
  Store(stored_);
  Store(other);
  const Acquired first = Acquire(stored_), joined = Acquire(stored_), of_other = Acquire(other);
  const Acquired of_part = Acquire(FirstOf(stored_, 16));
  for (const Acquired& held : {of_part, of_other, joined, first}) {
    EXPECT_TRUE(index_.Release(held.lease).ok());
  }
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(index_.EvictOne(true).has_value());
  EXPECT_EQ(Match(other).restorable_tokens, 0u) << "its block was used before that part";
  EXPECT_EQ(Match(stored_).restorable_tokens, 16u);
}

TEST_F(ShareTest, SpillingHearsWithinASecondThatAPathIsReadAllTheTime) {
  const Tokens other = Count(1000, 16);
  Store(FirstOf(stored_, 16));
  const Acquired first = Acquire(FirstOf(stored_, 16));
  Store(other);
  Clock().Advance(1'500'000);
  const Acquired joined = Acquire(FirstOf(stored_, 16), {}, kOther);
  const std::vector<SpillBlock> coldest = index_.PickSpill(1);
  ASSERT_EQ(coldest.size(), 1u);
  const Acquired of_other = Acquire(other);
  EXPECT_EQ(coldest[0].pages[0].extent, of_other.pages[0].extent);
  index_.AbortSpill(coldest);
}

TEST_F(ShareTest, ALeaseThatShrinksLeavesTheOtherItsPages) {
  Store(stored_);
  const Acquired first = Acquire(stored_, {.slot = 3});
  const Acquired second = Acquire(stored_, {.slot = 5}, kOther);
  EXPECT_TRUE(index_.ShrinkLease(first.lease, 17).ok());
  ASSERT_TRUE(index_.Validate().ok()) << index_.Validate();
  EXPECT_EQ(index_.LeasedPages(first.lease, {}, 48).value().size(), 2u);
  EXPECT_EQ(index_.LeasedPages(second.lease, {}, 48).value().size(), 3u);
  EXPECT_TRUE(index_.Release(second.lease).ok());
  EXPECT_EQ(Holders(first.pages[2]), 0u);
  EXPECT_NE(Holders(first.pages[1]) & 0b1000u, 0u);
  EvictAll();
  EXPECT_EQ(Match(stored_).restorable_tokens, 32u);
}

TEST_F(ShareTest, EachSessionIsChargedForAllPagesOfEachLease) {
  Store(stored_);
  const Acquired first = Acquire(stored_), again = Acquire(stored_);
  const Acquired other = Acquire(stored_, {}, kOther);
  for (const block::LeaseInfo& lease : index_.ListLeases()) {
    EXPECT_EQ(lease.bytes, 3 * block::kExtentUnit);
    EXPECT_EQ(lease.pages, 3u);
  }
  EXPECT_TRUE(index_.Release(first.lease).ok());
  EXPECT_TRUE(index_.Validate().ok()) << index_.Validate();
}

TEST_F(ShareTest, AfterAClearTheSameTokensAreOtherPages) {
  Store(stored_);
  const Acquired before = Acquire(stored_), joined = Acquire(stored_, {}, kOther);
  index_.Clear(space_);
  EXPECT_TRUE(index_.TakeFreed().empty());
  Store(stored_);
  const Acquired after = Acquire(stored_, {}, kOther);
  EXPECT_NE(after.pages[0].extent, before.pages[0].extent);
  ASSERT_TRUE(index_.Validate().ok()) << index_.Validate();
  EXPECT_TRUE(index_.Release(before.lease).ok());
  EXPECT_TRUE(index_.TakeFreed().empty());
  EXPECT_TRUE(index_.Release(joined.lease).ok());
  EXPECT_EQ(index_.TakeFreed().size(), 3u);
}

TEST_F(ShareTest, ABlockCountsEveryRequestThatReadsIt) {
  Store(stored_);
  std::vector<Acquired> leases;
  for (const int64_t ms : {10'000, 400, 500, 50'000}) {
    Clock().Advance(ms * 1'000);
    leases.push_back(Acquire(stored_, {}, kOther));
  }
  const block::BlockAges ages = index_.CountedAges();
  EXPECT_EQ(ages.reuse_gap.count, 12u);
  EXPECT_EQ(ages.reuse_gap.sum_ms, 3u * (10'000 + 400 + 500 + 50'000));
  EXPECT_EQ(ages.age_at_hit.sum_ms, 3u * (10'000 + 10'400 + 10'900 + 60'900));
}

TEST_F(ShareTest, ALeaseThatJoinsAMillisecondLaterIsAUseInTheMarks) {
  Store(stored_);
  const Acquired first = Acquire(stored_);
  for (const PageInfo& page : first.pages) MarksOf(page.extent).last_use = 7;
  const int64_t before = base::SystemClock::Get().UnixMicros();
  while (std::abs(base::SystemClock::Get().UnixMicros() - before) < 2'000) {
  }
  const Acquired joined = Acquire(stored_);
  for (const PageInfo& page : first.pages) EXPECT_NE(MarksOf(page.extent).last_use.load(), 7);
}

TEST_F(ShareTest, ATailsReaderAndThatOfTheBlockThatSupersededItHoldTheirOwn) {
  // Two donors of one request's last tokens, one after the other: the shorter one leaves the tree
  // while it is held.
  Store(FirstOf(stored_, 40));
  const Acquired of_shorter = Acquire(FirstOf(stored_, 40));
  Store(stored_);
  const Acquired of_longer = Acquire(FirstOf(stored_, 40), {}, kOther);
  ASSERT_EQ(of_longer.pages.size(), 3u);
  EXPECT_EQ(of_longer.pages[1].extent, of_shorter.pages[1].extent);
  EXPECT_NE(of_longer.pages[2].extent, of_shorter.pages[2].extent);
  EXPECT_TRUE(index_.Release(of_shorter.lease).ok());
  EXPECT_EQ(index_.TakeFreed().size(), 1u);
}

class ShareRungsTest : public IndexTest {
 protected:
  ShareRungsTest() : IndexTest(16, {3}) {}
};

TEST_F(ShareRungsTest, ALeaseOfOtherRungsOfTheSameBlocksHoldsThose) {
  const Tokens stored = Count(1, 32);
  Store({stored, {}}, {.groups = {}, .rungs = {2}, .coarser = {}});
  const Acquired coarse = Acquire(stored);
  ASSERT_TRUE(coarse.lease);
  Store({stored, {}}, {.groups = {}, .rungs = {1}, .coarser = {}});
  const Acquired fine = Acquire(stored, {}, kOther);
  ASSERT_EQ(fine.pages.size(), 2u);
  EXPECT_EQ(coarse.pages[0].ref.rung, 1u);
  const auto held = index_.LeasedPages(fine.lease, {}, 32).value();
  ASSERT_EQ(held.size(), 2u);
  for (const PageInfo& page : held) EXPECT_EQ(page.ref.rung, 0u);
}

TEST_F(ShareRungsTest, ReadersOfEachRungShareAmongThemselves) {
  const Tokens stored = Count(1, 320);
  for (const uint64_t rungs : {2, 1}) {
    Store({stored, {}}, {.groups = {}, .rungs = {rungs}, .coarser = {}});
  }
  const auto tables = [&](uint64_t rungs) {
    const uint64_t before = index_.Counts().table_bytes;
    const MatchOptions options{.selection = {.groups = {}, .rungs = {rungs}, .coarser = {}}};
    EXPECT_EQ(Acquire(stored, options).answer.restorable_tokens, 320u);
    return index_.Counts().table_bytes - before;
  };
  const uint64_t first_coarse = tables(2), first_fine = tables(1);
  EXPECT_LT(tables(2), first_coarse / 2);
  EXPECT_LT(tables(1), first_fine / 2);
}

}  // namespace
}  // namespace prefixd::index
