// What stands beside a page in the arena file: who may be reading it, when it was used, where
// sequences end. A later daemon, and nobody else, relies on it after a kill -9.
#include <gmock/gmock.h>

#include "base/clock.h"
#include "index_fixture.h"

namespace prefixd::index {
namespace {

class MarksTest : public IndexTest {
 protected:
  uint64_t Holders(const PageInfo& page) { return MarksOf(page.extent).ReadHolders(); }
  // Bit k - 1: an end after k tokens.
  std::pair<uint64_t, uint64_t> Ends(const PageInfo& page) {
    return {MarksOf(page.extent).ends[0].load(), MarksOf(page.extent).ends[1].load()};
  }
  Acquired AcquireAs(const Tokens& tokens, uint32_t slot, block::SessionId session = kMe) {
    return Acquire(tokens, {.slot = slot}, session);
  }
};

TEST_F(MarksTest, BitsOfAllHoldersAreSetAndTheWordIsZeroWhenTheLastGoes) {
  const Tokens stored = Count(1, 40);
  Store(stored);
  const Acquired mine = AcquireAs(stored, 3);
  for (const PageInfo& page : mine.pages) EXPECT_EQ(Holders(page), uint64_t{1} << 3);
  const Acquired other = AcquireAs(FirstOf(stored, 16), 63, kOther);
  EXPECT_EQ(Holders(mine.pages[0]), uint64_t{1} << 3 | uint64_t{1} << 63);
  EXPECT_EQ(Holders(mine.pages[1]), uint64_t{1} << 3);
  EXPECT_TRUE(index_.Release(mine.lease).ok());
  EXPECT_NE(Holders(mine.pages[0]) & uint64_t{1} << 63, 0u);
  EXPECT_EQ(Holders(mine.pages[1]), 0u);
  EXPECT_TRUE(index_.Release(other.lease).ok());
  EXPECT_EQ(Holders(mine.pages[0]), 0u);
}

TEST_F(MarksTest, ASessionWithoutASlotHoldsWithoutABit) {
  Store(Count(1, 16));
  const Acquired acquired = Acquire(Count(1, 16));
  EXPECT_EQ(Holders(acquired.pages[0]), 0u);
  EvictAll();
  EXPECT_TRUE(index_.TakeFreed().empty());
}

TEST_F(MarksTest, ShrinkingClearsOnlyWhatIsGivenUp) {
  const Tokens stored = Count(1, 48);
  Store(stored);
  const Acquired acquired = AcquireAs(stored, 1);
  EXPECT_TRUE(index_.ShrinkLease(acquired.lease, 17).ok());
  EXPECT_EQ(Holders(acquired.pages[0]), 2u);
  EXPECT_EQ(Holders(acquired.pages[1]), 2u);
  EXPECT_EQ(Holders(acquired.pages[2]), 0u);
}

TEST_F(MarksTest, APageThatIsReadFromSsdWhileHeldGetsItsHoldersBits) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  SpillAll();
  EvictAll();
  const Acquired mine = AcquireAs(stored, 2), other = AcquireAs(stored, 5, kOther);
  ASSERT_TRUE(index_.BeginPromotion(mine.pages[0].ref));
  const NewPage place = MakePage();
  index_.FinishPromotion(mine.pages[0].ref, place.extent, place.marks);
  EXPECT_EQ(place.marks->ReadHolders(), 4u | 32u);
  EXPECT_EQ(place.marks->ends[0].load(), uint64_t{1} << 15);
  EXPECT_GT(place.marks->last_use.load(), 0);
  EXPECT_TRUE(index_.Release(mine.lease).ok());
  EXPECT_TRUE(index_.Release(other.lease).ok());
  EXPECT_EQ(place.marks->ReadHolders(), 0u);
}

TEST_F(MarksTest, LastUseIsTheWallClockOfPublishAndOfAcquire) {
  const int64_t before = base::SystemClock::Get().UnixMicros();
  Store(Count(1, 32));
  const Acquired acquired = AcquireAs(FirstOf(Count(1, 32), 16), 1);
  block::PageMarks& marks = MarksOf(acquired.pages[0].extent);
  EXPECT_GE(marks.last_use.load(), before);
  EXPECT_LE(marks.last_use.load(), base::SystemClock::Get().UnixMicros());
  marks.last_use = 7;
  Match(Count(1, 32));
  EXPECT_EQ(marks.last_use.load(), 7);
  AcquireAs(Count(1, 16), 2);
  EXPECT_GE(marks.last_use.load(), before);
}

TEST_F(MarksTest, EndsAreKeptWithEveryPageOfTheBlock) {
  const Tokens stored = Count(1, 32);
  Store(stored);
  const Acquired acquired = Acquire(stored);
  EXPECT_EQ(Ends(acquired.pages[0]).first, 0u);
  EXPECT_EQ(Ends(acquired.pages[1]).first, uint64_t{1} << 15);
  Store(FirstOf(stored, 5));
  Store(FirstOf(stored, 20));
  EXPECT_EQ(Ends(acquired.pages[0]).first, uint64_t{1} << 4);
  EXPECT_EQ(Ends(acquired.pages[1]).first, uint64_t{1} << 15 | uint64_t{1} << 3);
}

TEST_F(MarksTest, EndsMoveToTheBlockThatSupersedes) {
  const Tokens stored = Count(1, 16);
  Store(FirstOf(stored, 9));
  const Acquired tail = AcquireAs(FirstOf(stored, 9), 1);
  EXPECT_EQ(Ends(tail.pages[0]).first, uint64_t{1} << 8);
  Store(stored);
  EXPECT_EQ(Ends(Acquire(stored).pages[0]).first, uint64_t{1} << 8 | uint64_t{1} << 15);
  EXPECT_EQ(Ends(tail.pages[0]).first, 0u);
  EXPECT_EQ(Holders(tail.pages[0]), 2u);  // out of the tree, and still read
}

class BigBlockMarksTest : public MarksTest {
 protected:
  BigBlockMarksTest() { big_ = index_.AddSpace({.id = {}, .block_tokens = 128, .rungs = {2, 1}}); }
  block::SpaceHandle big_;
};

TEST_F(BigBlockMarksTest, EndsBeyondSixtyFourTokensStandInTheSecondWordOfEachPage) {
  std::swap(space_, big_);
  const Tokens stored = Count(1, 128);
  Store(stored);
  Store(FirstOf(stored, 64));
  Store(FirstOf(stored, 65));
  const Acquired acquired = Acquire(stored);
  ASSERT_EQ(acquired.pages.size(), 2u);
  for (const PageInfo& page : acquired.pages) {
    EXPECT_EQ(Ends(page), std::pair(uint64_t{1} << 63, uint64_t{1} << 63 | 1));
  }
}

TEST_F(MarksTest, NothingIsWrittenBesideAnExtentThatWasGivenBack) {
  const Tokens stored = Count(1, 32);
  Store(stored);
  SpillAll();
  const Acquired acquired = AcquireAs(stored, 1);
  const PageInfo page = acquired.pages[1];
  EXPECT_TRUE(index_.Release(acquired.lease).ok());
  EvictAll();
  ASSERT_EQ(index_.TakeFreed().size(), 2u);
  block::PageMarks& marks = MarksOf(page.extent);
  marks.holders = marks.ends[0] = marks.ends[1] = 77;
  marks.last_use = 77;
  const Acquired again = AcquireAs(stored, 2);
  Store(FirstOf(stored, 30));
  EXPECT_TRUE(index_.Release(again.lease).ok());
  index_.Clear(space_);
  EXPECT_EQ(marks.holders.load(), 77u);
  EXPECT_EQ(marks.last_use.load(), 77);
  EXPECT_EQ(Ends(page), std::pair(uint64_t{77}, uint64_t{77}));
}

TEST_F(MarksTest, AMovedPageTakesItsMarksAlong) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  const auto picked = index_.PickMovable(0, ~uint64_t{0});
  ASSERT_EQ(picked.size(), 1u);
  MarksOf(picked[0].extent).last_use = 1234;
  const NewPage place = MakePage();
  EXPECT_TRUE(index_.FinishMove(picked[0].ref, picked[0].extent, place.extent, place.marks));
  EXPECT_THAT(index_.TakeFreed(), testing::ElementsAre(picked[0].extent));
  EXPECT_EQ(place.marks->last_use.load(), 1234);
  EXPECT_EQ(place.marks->ends[0].load(), uint64_t{1} << 15);
  const Acquired acquired = AcquireAs(stored, 4);
  EXPECT_EQ(acquired.pages[0].extent, place.extent);
  EXPECT_EQ(Holders(acquired.pages[0]), 16u);
}

}  // namespace
}  // namespace prefixd::index
