// What a pin keeps, against everything that gives blocks up.
#include <gmock/gmock.h>

#include "index_fixture.h"

namespace prefixd::index {
namespace {

using testing::HasSubstr;

class PinTest : public IndexTest {
 protected:
  using IndexTest::IndexTest;
  // As the cache does: a lease, the pin, and the lease goes.
  block::PinId Pin(const Tokens& tokens, block::SessionId session = kMe) {
    const Acquired held = Acquire(tokens, {}, session);
    const auto pin = index_.Pin(held.lease, held.answer.restorable_tokens);
    EXPECT_TRUE(index_.Release(held.lease).ok());
    EXPECT_TRUE(pin.ok()) << pin.status();
    return pin.value_or(block::PinId{});
  }
};

TEST_F(PinTest, WhatIsPinnedIsNotEvictedAndGoesAfterUnpin) {
  const Tokens pinned = Count(1, 40), other = Count(100, 16);
  Store(pinned);
  Store(other);
  const block::PinId pin = Pin(pinned);
  EvictAll();
  index_.EvictRange(0, ~uint64_t{0}, true);
  EXPECT_EQ(Match(pinned).restorable_tokens, 40u);
  EXPECT_EQ(Match(other).restorable_tokens, 0u);
  EXPECT_EQ(index_.Counts().pinned_bytes, 3 * block::kExtentUnit);
  EXPECT_TRUE(index_.Validate().ok());
  ASSERT_TRUE(index_.Unpin(pin).ok());
  EXPECT_EQ(index_.Unpin(pin).code(), absl::StatusCode::kNotFound);
  EvictAll();
  EXPECT_EQ(Match(pinned).restorable_tokens, 0u);
  EXPECT_EQ(index_.Counts().pinned_bytes, 0u);
}

TEST_F(PinTest, WhatIsPinnedStaysInRamWhenItsCopyAgesOut) {
  const Tokens pinned = Count(1, 32);
  Store(pinned);
  Pin(pinned);
  SpillAll();
  EvictAll();
  EXPECT_EQ(Match(pinned).ram_bytes, 2 * kPageBytes);
  EXPECT_EQ(index_.Counts().clean_bytes, 0u);  // it cannot be given up
  index_.DropSsdRange(1, next_sequence_);
  EXPECT_EQ(Match(pinned).restorable_tokens, 32u);
  index_.TrimMemory(0);
  EXPECT_EQ(Match(pinned).restorable_tokens, 32u);
}

TEST_F(PinTest, ThePinFollowsTheBlockThatSupersedesThePinned) {
  const Tokens shorter = Count(1, 20), longer = Count(1, 24);
  Store(shorter);
  const block::PinId pin = Pin(shorter);
  Store(longer);
  EvictAll();
  EXPECT_EQ(Match(longer).restorable_tokens, 24u);
  ASSERT_TRUE(index_.Unpin(pin).ok());
  EvictAll();
  EXPECT_EQ(Match(longer).matched_tokens, 0u);
}

TEST_F(PinTest, TwoPinsOfOnePathEndEachForItself) {
  const Tokens whole = Count(1, 32);
  Store(whole);
  const block::PinId first = Pin(FirstOf(whole, 16)), second = Pin(whole);
  ASSERT_TRUE(index_.Unpin(second).ok());
  EvictAll();
  EXPECT_EQ(Match(whole).restorable_tokens, 16u);
  ASSERT_TRUE(index_.Unpin(first).ok());
  EvictAll();
  EXPECT_EQ(Match(whole).restorable_tokens, 0u);
}

TEST_F(PinTest, AClearEndsThePinsOfItsSpace) {
  Store(Count(1, 20));
  const block::PinId pin = Pin(Count(1, 20));
  index_.Clear(space_);
  EXPECT_EQ(Match(Count(1, 20)).matched_tokens, 0u);
  EXPECT_EQ(index_.TakeFreed().size(), 2u);
  EXPECT_EQ(index_.Unpin(pin).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(index_.Counts().pins, 0u);
}

TEST_F(PinTest, APinnedPageMayBeMoved) {
  Store(Count(1, 16));
  Pin(Count(1, 16));
  const std::vector<PageInfo> movable = index_.PickMovable(0, ~uint64_t{0});
  ASSERT_EQ(movable.size(), 1u);
  block::PageMarks marks;
  EXPECT_TRUE(index_.FinishMove(movable[0].ref, movable[0].extent, NewExtent(), &marks));
  EXPECT_EQ(Acquire(Count(1, 16)).pages.size(), 1u);
  EndSession(kMe);
  marks_.clear();
  index_.Clear(space_);
}

class PinQuotaTest : public PinTest {
 protected:
  PinQuotaTest()
      : PinTest(16, {1},
                {.limits = {.session_lease_bytes = 4 * block::kExtentUnit,
                            .total_lease_bytes = 6 * block::kExtentUnit}}) {}
};

TEST_F(PinQuotaTest, PinnedBytesCountAgainstTheLeasesOfTheSession) {
  const Tokens first = Count(1, 48), second = Count(1000, 48);
  Store(first);
  Store(second);
  Pin(first);
  const Acquired cut = Acquire(second);
  EXPECT_EQ(cut.answer.restorable_tokens, 16u);  // three extents are pinned, one is left
  EXPECT_EQ(cut.answer.shortened_by[0].reason, block::ShortenReason::kLeaseQuota);
  EXPECT_EQ(Acquire(second, {}, kOther).answer.restorable_tokens, 48u);
}

TEST_F(PinQuotaTest, AllSessionsTogetherStayBelowTheTotalWhateverIsPinnedTwice) {
  const Tokens first = Count(1, 48), second = Count(1000, 64);
  Store(first);
  Store(second);
  Pin(first, block::SessionId{7});
  Pin(first, block::SessionId{8});
  EXPECT_EQ(Acquire(first, {}, kOther).answer.restorable_tokens, 48u);  // the same extents
  EXPECT_EQ(index_.Counts().kept_bytes, 3 * block::kExtentUnit);
  EXPECT_EQ(Acquire(second, {}, kMe).answer.restorable_tokens, 48u);  // six in all
}

}  // namespace
}  // namespace prefixd::index
