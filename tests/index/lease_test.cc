// Leases, quotas, promotion.
#include <gmock/gmock.h>

#include "index_fixture.h"

namespace prefixd::index {
namespace {

using block::ShortenReason;

TEST_F(IndexTest, LeasedPagesAreNotGivenUp) {
  const Tokens stored = Count(1, 32);
  Store(stored);
  const Acquired acquired = Acquire(stored);
  EXPECT_EQ(index_.Counts().leased_bytes, 2 * block::kExtentUnit);
  EvictAll();
  EXPECT_TRUE(index_.TakeFreed().empty());
  EXPECT_TRUE(index_.Release(acquired.lease).ok());
  EXPECT_EQ(index_.Counts().leased_bytes, 0u);
  EvictAll();
  EXPECT_EQ(index_.TakeFreed().size(), 2u);
  EXPECT_EQ(index_.Release(acquired.lease).code(), absl::StatusCode::kNotFound);
}

TEST_F(IndexTest, MatchPinsNothing) {
  const Tokens stored = Count(1, 32);
  Store(stored);
  Match(stored);
  EXPECT_EQ(index_.Counts().leases, 0u);
  EvictAll();
  EXPECT_EQ(Summary().blocks, 0u);
}

TEST_F(IndexTest, ASupersededTailIsFreedWhenItsLastLeaseEnds) {
  const Tokens stored = Count(1, 30);
  Store(FirstOf(stored, 20));
  const Acquired acquired = Acquire(FirstOf(stored, 20));
  Store(stored);
  EXPECT_TRUE(index_.TakeFreed().empty());
  EXPECT_TRUE(index_.Release(acquired.lease).ok());
  const auto freed = index_.TakeFreed();
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(freed[0], acquired.pages[1].extent);
}

TEST_F(IndexTest, ShrinkingALeaseGivesUpWhatLiesBeyond) {
  const Tokens stored = Count(1, 48);
  Store(stored);
  const Acquired acquired = Acquire(stored);
  EXPECT_TRUE(index_.ShrinkLease(acquired.lease, 17).ok());
  EXPECT_EQ(index_.Counts().leased_bytes, 2 * block::kExtentUnit);
  EvictAll();
  EXPECT_EQ(Match(stored).restorable_tokens, 32u);
}

class QuotaTest : public IndexTest {
 protected:
  QuotaTest() : IndexTest(16, {1}, {.limits = {.session_lease_bytes = 3 * block::kExtentUnit}}) {}
};

TEST_F(QuotaTest, BeyondTheQuotaTheAnswerIsShorter) {
  const Tokens stored = Count(1, 80);
  Store(stored);
  const Acquired first = Acquire(stored);
  EXPECT_EQ(first.answer.restorable_tokens, 48u);
  EXPECT_EQ(first.answer.ram_bytes, 3 * kPageBytes);
  ASSERT_EQ(first.answer.shortened_by.size(), 1u);
  EXPECT_EQ(first.answer.shortened_by[0].reason, ShortenReason::kLeaseQuota);
  EXPECT_FALSE(Acquire(stored).lease);
  EXPECT_TRUE(Acquire(stored, {}, kOther).lease);
  EXPECT_TRUE(index_.Release(first.lease).ok());
  EXPECT_TRUE(Acquire(stored).lease);
}

TEST_F(IndexTest, ExactlyOneCallerPromotesAPage) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  SpillAll();
  EvictAll();
  const Acquired acquired = Acquire(stored);
  EXPECT_EQ(acquired.answer.ssd_bytes, kPageBytes);
  const PageRef page = acquired.pages[0].ref;
  EXPECT_TRUE(index_.BeginPromotion(page));
  EXPECT_FALSE(index_.BeginPromotion(page));
  const auto now = std::chrono::steady_clock::now();
  EXPECT_EQ(index_.WaitWhilePromoting(page, now).state, PageState::kPromoting);
  index_.FinishPromotion(page, NewExtent());
  EXPECT_EQ(index_.WaitWhilePromoting(page, now).state, PageState::kRamAndSsd);
  EXPECT_EQ(Match(stored).ram_bytes, kPageBytes);
}

TEST_F(IndexTest, ACorruptCopyIsGoneAndALaterCommitHealsIt) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  SpillAll();
  EvictAll();
  const Acquired acquired = Acquire(stored);
  ASSERT_TRUE(index_.BeginPromotion(acquired.pages[0].ref));
  index_.FailPromotion(acquired.pages[0].ref, PrefixIndex::PromotionFailure::kCorrupt);
  EXPECT_EQ(Match(stored).restorable_tokens, 0u);
  Store(stored);
  EXPECT_EQ(Match(stored).restorable_tokens, 16u);
}

TEST_F(IndexTest, APromotionOutlivesTheSessionThatAskedForIt) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  SpillAll();
  EvictAll();
  index_.TakeFreed();
  const PageRef page = Acquire(stored).pages[0].ref;
  ASSERT_TRUE(index_.BeginPromotion(page));
  index_.Clear(space_);
  EndSession(kMe);
  const block::Extent extent = NewExtent();
  index_.FinishPromotion(page, extent);
  EXPECT_THAT(index_.TakeFreed(), testing::ElementsAre(extent));
  EXPECT_FALSE(index_.BeginPromotion(page));  // the block is gone, and the reference knows
}

}  // namespace
}  // namespace prefixd::index
