// Pages change their place in the arena, and only while nobody looks.
#include <gmock/gmock.h>

#include "index_fixture.h"

namespace prefixd::index {
namespace {

using testing::ElementsAre;

TEST_F(IndexTest, PagesOfTheRangeThatNobodyHoldsAreMovable) {
  Store(Count(1, 48));
  const Acquired acquired = Acquire(Count(1, 16));
  const auto all = index_.PickMovable(0, ~uint64_t{0});
  ASSERT_EQ(all.size(), 2u);
  const uint64_t first = std::min(all[0].extent.offset, all[1].extent.offset);
  EXPECT_EQ(index_.PickMovable(first, first + 1).size(), 1u);
  const auto spilling = index_.PickSpill(~uint64_t{0});
  EXPECT_TRUE(index_.PickMovable(0, ~uint64_t{0}).empty());
  index_.AbortSpill(spilling);
  EXPECT_TRUE(index_.Release(acquired.lease).ok());
  EXPECT_EQ(index_.PickMovable(0, ~uint64_t{0}).size(), 3u);
}

TEST_F(IndexTest, AMoveIsCalledOffWhenSomebodyTookHoldMeanwhile) {
  Store(Count(1, 16));
  const auto picked = index_.PickMovable(0, ~uint64_t{0});
  const Acquired acquired = Acquire(Count(1, 16));
  const NewPage place = MakePage();
  const auto finish = [&] {
    return index_.FinishMove(picked[0].ref, picked[0].extent, place.extent, place.marks);
  };
  EXPECT_FALSE(finish());
  EXPECT_EQ(Acquire(Count(1, 16)).pages[0].extent, picked[0].extent);
  EndSession(kMe);
  EXPECT_TRUE(finish());  // it was only read
  EXPECT_FALSE(finish());
  EXPECT_EQ(Acquire(Count(1, 16)).pages[0].extent, place.extent);
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(picked[0].extent));
}

TEST_F(IndexTest, AMoveIsCalledOffWhenThePageIsGone) {
  Store(Count(1, 16));
  const auto picked = index_.PickMovable(0, ~uint64_t{0});
  EvictAll();
  const NewPage place = MakePage();
  EXPECT_FALSE(index_.FinishMove(picked[0].ref, picked[0].extent, place.extent, place.marks));
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(picked[0].extent));
}

// The arena gives the old extent to the same page again: what was copied is not what it holds.
TEST_F(IndexTest, AMoveIsCalledOffWhenAnotherCopyStandsInTheSameExtent) {
  const Tokens stored = Count(1, 32);
  Store(stored);
  SpillAll();
  const Acquired pinned = Acquire(stored);
  const auto id = Reserve({stored, {}});  // keeps the blocks
  EXPECT_TRUE(index_.Release(pinned.lease).ok());
  const auto picked = index_.PickMovable(0, ~uint64_t{0});
  EvictAll();
  index_.TakeFreed();
  const Acquired acquired = Acquire(stored);
  for (const PageInfo& page : acquired.pages) {
    ASSERT_TRUE(index_.BeginPromotion(page.ref));
    for (const PageInfo& before : picked) {
      if (before.ref == page.ref) index_.FinishPromotion(page.ref, before.extent);
    }
  }
  EXPECT_TRUE(index_.Release(acquired.lease).ok());
  const NewPage place = MakePage();
  EXPECT_FALSE(index_.FinishMove(picked[0].ref, picked[0].extent, place.extent, place.marks));
  EXPECT_TRUE(index_.TakeFreed().empty());
  EXPECT_TRUE(index_.CloseReservation(id).ok());
}

// T6: a page that was found bad, while another one was put into its place.
TEST_F(IndexTest, T6APickedPageIsGivenUpOnlyWhereTheSameCopyStillStands) {
  const Tokens stored = Count(1, 32);
  Store(stored);
  SpillAll();
  const auto picked = index_.PickMovable(0, ~uint64_t{0});
  ASSERT_EQ(picked.size(), 2u);
  const Acquired held = Acquire(stored);
  EXPECT_EQ(index_.EvictPicked(picked[0].ref, picked[0].extent).pages, 0u) << "somebody reads it";
  const auto id = Reserve({stored, {}});  // keeps the blocks
  EXPECT_TRUE(index_.Release(held.lease).ok());
  EvictAll();
  index_.TakeFreed();
  const Acquired acquired = Acquire(stored);
  ASSERT_TRUE(index_.BeginPromotion(picked[1].ref));
  ASSERT_TRUE(index_.FinishPromotion(picked[1].ref, picked[0].extent));
  EXPECT_TRUE(index_.Release(acquired.lease).ok());
  EXPECT_EQ(index_.EvictPicked(picked[0].ref, picked[0].extent).pages, 0u) << "gone";
  EXPECT_EQ(index_.EvictPicked(picked[1].ref, picked[0].extent).pages, 0u) << "another copy";
  const auto again = index_.PickMovable(0, ~uint64_t{0});
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(index_.EvictPicked(picked[0].ref, again[0].extent).pages, 0u);
  EXPECT_EQ(index_.EvictPicked(again[0].ref, again[0].extent).pages, 1u);
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(picked[0].extent));
  EXPECT_TRUE(index_.CloseReservation(id).ok());
}

TEST_F(IndexTest, AMovedPageIsStillDirtyOrClean) {
  Store(Count(1, 16));
  SpillAll();
  Store(Count(1, 32));
  for (const PageInfo& page : index_.PickMovable(0, ~uint64_t{0})) {
    const NewPage place = MakePage();
    EXPECT_TRUE(index_.FinishMove(page.ref, page.extent, place.extent, place.marks));
  }
  EXPECT_EQ(index_.Counts().dirty_bytes, block::kExtentUnit);
  EXPECT_EQ(index_.Counts().clean_bytes, block::kExtentUnit);
  EXPECT_EQ(SpillAll().size(), 1u);
}

}  // namespace
}  // namespace prefixd::index
