// Limits of spaces: floors and ceilings in RAM, ceilings on SSD, blocks that outlived their time.
#include "index_fixture.h"

namespace prefixd::index {
namespace {

// Two spaces; `other_` is the second.
class SpaceLimitsTest : public IndexTest {
 protected:
  SpaceLimitsTest() {
    SpaceShape shape{.id = {}, .block_tokens = 16, .rungs = {1}};
    shape.id[0] = std::byte{8};
    other_ = index_.AddSpace(shape);
  }
  void StoreIn(block::SpaceHandle space, const Tokens& tokens) {
    const block::SpaceHandle mine = std::exchange(space_, space);
    Store(tokens);
    space_ = mine;
  }
  uint32_t Cached(block::SpaceHandle space, const Tokens& tokens) const {
    return index_.Match(space, {tokens, {}}, {}).restorable_tokens;
  }
  static constexpr uint64_t kPage = block::kExtentUnit;
  block::SpaceHandle other_;
};

TEST_F(SpaceLimitsTest, NothingBelowItsFloorIsEvictedForOthers) {
  const Tokens old_path = Count(1, 48), young = Count(1, 32);
  StoreIn(space_, old_path);
  StoreIn(other_, young);
  index_.SetSpaceLimits(space_, {.ram_floor_bytes = 2 * kPage});
  index_.EvictOne(true);  // the coldest, down to the floor
  EXPECT_EQ(Cached(space_, old_path), 32u);
  index_.EvictOne(true);
  index_.EvictOne(true);
  EXPECT_EQ(Cached(space_, old_path), 32u);
  EXPECT_EQ(Cached(other_, young), 0u);
  EXPECT_FALSE(index_.EvictOne(true).has_value());
  index_.SetSpaceLimits(space_, {});
  EXPECT_TRUE(index_.EvictOne(true).has_value());
}

TEST_F(SpaceLimitsTest, ASpaceAboveItsCeilingGivesFirst) {
  const Tokens cold = Count(1, 32), warm = Count(1, 32);
  StoreIn(space_, cold);
  StoreIn(other_, warm);
  index_.SetSpaceLimits(other_, {.ram_ceiling_bytes = kPage});
  index_.EvictOne(true);
  EXPECT_EQ(Cached(other_, warm), 16u);
  EXPECT_EQ(Cached(space_, cold), 32u);
  index_.EvictOne(true);  // at its ceiling now: the coldest of all
  EXPECT_EQ(Cached(other_, warm), 16u);
  EXPECT_EQ(Cached(space_, cold), 16u);
}

TEST_F(SpaceLimitsTest, EvictAboveTakesTheColdestOfOneSpaceOnly) {
  StoreIn(space_, Count(1, 48));
  StoreIn(other_, Count(1, 48));
  const Evicted evicted = index_.EvictAbove(other_, kPage, true);
  EXPECT_EQ(evicted.pages, 2u);
  EXPECT_EQ(evicted.dropped_pages, 2u);
  EXPECT_EQ(Cached(space_, Count(1, 48)), 48u);
  EXPECT_EQ(Cached(other_, Count(1, 48)), 16u);
  EXPECT_EQ(index_.EvictAbove(other_, 0, false).pages, 0u);  // dirty ones wait for the SSD
}

TEST_F(SpaceLimitsTest, WhatNobodyUsedSinceIsForgottenInBothTiers) {
  const Tokens old_path = Count(1, 48), on_ssd = Count(100, 16), young = Count(200, 16);
  Store(old_path);
  Store(on_ssd);
  SpillAll();
  EvictAll();
  StoreIn(other_, old_path);
  const int64_t border = index_.Counts().stamp;
  Acquire(FirstOf(old_path, 16));  // used again
  EndSession(kMe);
  Store(young);
  const Evicted forgotten = index_.ForgetUnused(space_, border + 1, ~uint64_t{0});
  EXPECT_EQ(forgotten.pages, 3u);
  EXPECT_EQ(Match(old_path).restorable_tokens, 16u);
  EXPECT_EQ(Match(on_ssd).matched_tokens, 0u);
  EXPECT_EQ(Match(on_ssd).ended_by, block::EndReason::kEvicted);
  EXPECT_EQ(Match(young).restorable_tokens, 16u);
  EXPECT_EQ(Cached(other_, old_path), 48u);
}

TEST_F(SpaceLimitsTest, WhatIsReadOrPinnedIsNotForgotten) {
  Store(Count(1, 16));
  Store(Count(100, 16));
  Store(Count(200, 16));
  Acquire(Count(1, 16), {}, kOther);
  const Acquired held = Acquire(Count(100, 16));
  ASSERT_TRUE(index_.Pin(held.lease, 16).ok());
  ASSERT_TRUE(index_.Release(held.lease).ok());
  EXPECT_EQ(index_.ForgetUnused(space_, INT64_MAX, ~uint64_t{0}).pages, 1u);
  EXPECT_EQ(Match(Count(1, 16)).restorable_tokens, 16u);
  EXPECT_EQ(Match(Count(100, 16)).restorable_tokens, 16u);
}

TEST_F(SpaceLimitsTest, AnSsdCeilingForgetsTheColdestCopiesLeavesFirst) {
  const Tokens cold = Count(1, 48), warm = Count(100, 16);
  Store(cold);
  Store(warm);
  SpillAll();
  EvictAll();
  index_.ForgetUnused(space_, 0, 2 * kPageBytes);
  EXPECT_EQ(Summary().ssd_page_bytes, 2 * kPageBytes);
  EXPECT_EQ(Match(cold).restorable_tokens, 16u);
  EXPECT_EQ(Match(warm).restorable_tokens, 16u);
}

}  // namespace
}  // namespace prefixd::index
