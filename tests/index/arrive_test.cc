// Blocks of another host: in the tree at once, their pages later or never.
#include <gmock/gmock.h>

#include "index_fixture.h"

namespace prefixd::index {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class ArriveTest : public IndexTest {
 protected:
  using IndexTest::IndexTest;
  static PrefixIndex::ArrivingBlock OnePage(std::vector<uint32_t> ends = {}) {
    return {.pages = {{.group = 0, .rung = 0, .page_bytes = kPageBytes, .payload_bytes = 900}},
            .ends = std::move(ends)};
  }
  std::vector<PageInfo> Expect(const Tokens& tokens, uint32_t first_block, size_t blocks) {
    const std::vector<PrefixIndex::ArrivingBlock> arriving(blocks, OnePage());
    return index_.AddArriving(space_, {tokens, {}}, first_block, arriving);
  }
  block::Extent Arrive(const PageInfo& page) {
    const block::Extent extent = NewExtent();
    EXPECT_TRUE(index_.FinishArrival(page.ref, 77, extent, &MarksOf(extent)));
    return extent;
  }
};

TEST_F(ArriveTest, ALeaseHasThePagesBeforeTheyAreThere) {
  const Tokens tokens = Count(1, 48);
  Store(FirstOf(tokens, 16));
  const std::vector<PageInfo> expected = Expect(tokens, 1, 2);
  ASSERT_THAT(expected, SizeIs(2));
  const Acquired lease = Acquire(tokens);
  EXPECT_EQ(lease.answer.restorable_tokens, 48u);
  EXPECT_EQ(lease.pages[2].state, PageState::kPromoting);
  const block::Extent extent = Arrive(expected[0]);
  Arrive(expected[1]);
  const std::vector<PageInfo> now = index_.LeasedPages(lease.lease, {}, 48).value();
  EXPECT_EQ(now[1].extent, extent);
  EXPECT_EQ(now[1].check, 77u);
  EXPECT_EQ(now[2].state, PageState::kRam);      // dirty: no disk has it
  EXPECT_EQ(MarksOf(extent).ReadHolders(), 0u);  // the session has no slot
  EXPECT_TRUE(index_.Release(lease.lease).ok());
}

TEST_F(ArriveTest, WhoeverAsksMeanwhileDoesNotBringThemAgain) {
  const Tokens tokens = Count(1, 32);
  const std::vector<PageInfo> first = Expect(tokens, 0, 2);
  EXPECT_THAT(Expect(tokens, 0, 2), IsEmpty());
  for (const PageInfo& page : first) Arrive(page);
  EXPECT_THAT(Expect(tokens, 0, 2), IsEmpty());
}

TEST_F(ArriveTest, APageThatDoesNotComeIsGoneForItsLeasesAndTheNextRequest) {
  const Tokens tokens = Count(1, 32);
  const std::vector<PageInfo> expected = Expect(tokens, 0, 2);
  const Acquired lease = Acquire(tokens);
  Arrive(expected[0]);
  index_.FailPromotion(expected[1].ref, PrefixIndex::PromotionFailure::kTryAgain);
  EXPECT_EQ(index_.LeasedPages(lease.lease, {}, 32).value()[1].state, PageState::kGone);
  EXPECT_EQ(Match(tokens).restorable_tokens, 16u);
  EXPECT_TRUE(index_.Release(lease.lease).ok());
  EXPECT_THAT(Expect(tokens, 1, 1), SizeIs(1));
  EndSession(kMe);
  index_.Clear(space_);
}

TEST_F(ArriveTest, AHoleInTheTreeIsFilled) {
  const Tokens tokens = Count(1, 48);
  Store(tokens);
  SpillAll();
  index_.DropSsdPages({1});
  EvictAll();
  ASSERT_EQ(Match(tokens).restorable_tokens, 0u);
  const std::vector<PageInfo> expected = Expect(tokens, 0, 3);
  ASSERT_THAT(expected, SizeIs(1));
  Arrive(expected[0]);
  EXPECT_EQ(Match(tokens).restorable_tokens, 48u);
}

TEST_F(ArriveTest, NothingIsExpectedBehindAParentThatIsGone) {
  EXPECT_THAT(Expect(Count(1, 48), 1, 2), IsEmpty());
  EXPECT_EQ(Summary().blocks, 0u);
}

TEST_F(ArriveTest, NothingIsExpectedThatTheRequestOrTheSpaceDoesNotHave) {
  const Tokens tokens = Count(1, 40);
  EXPECT_THAT(Expect(tokens, 0, 3), SizeIs(2));  // the third block is not whole
  PrefixIndex::ArrivingBlock strange = OnePage();
  strange.pages[0].rung = 3;
  EXPECT_THAT(index_.AddArriving(space_, {Count(100, 16), {}}, 0, {&strange, 1}), IsEmpty());
  strange = OnePage({17});
  EXPECT_THAT(index_.AddArriving(space_, {Count(100, 16), {}}, 0, {&strange, 1}), IsEmpty());
  index_.Clear(space_);
}

TEST_F(ArriveTest, AClearLetsNoPageThatWasOnTheWayBack) {
  const Tokens tokens = Count(1, 16);
  const std::vector<PageInfo> expected = Expect(tokens, 0, 1);
  index_.Clear(space_);
  const block::Extent extent = Arrive(expected[0]);
  EXPECT_EQ(Match(tokens).matched_tokens, 0u);
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(extent));
}

TEST_F(ArriveTest, AShorterSiblingStaysUntilTheWholeBlockIsThere) {
  const Tokens tokens = Count(1, 16);
  Store(FirstOf(tokens, 10));
  const std::vector<PageInfo> expected = Expect(tokens, 0, 1);
  index_.FailPromotion(expected[0].ref, PrefixIndex::PromotionFailure::kTryAgain);
  EXPECT_EQ(Match(tokens).restorable_tokens, 10u);
  Arrive(Expect(tokens, 0, 1)[0]);
  EXPECT_EQ(Match(tokens).restorable_tokens, 16u);
  EXPECT_THAT(index_.TakeFreed(), SizeIs(1));  // of the shorter one
}

TEST_F(ArriveTest, ItsEndsMakeExactHits) {
  const Tokens tokens = Count(1, 16);
  const std::vector<PrefixIndex::ArrivingBlock> blocks{OnePage({12})};
  Arrive(index_.AddArriving(space_, {tokens, {}}, 0, blocks)[0]);
  EXPECT_EQ(Match(FirstOf(tokens, 12)).kind, block::MatchKind::kExact);
  EXPECT_EQ(Match(FirstOf(tokens, 11)).kind, block::MatchKind::kSupersequence);
}

TEST_F(ArriveTest, AnArrivedPageIsSpilledAndEvictedAsOthersAre) {
  const Tokens tokens = Count(1, 16);
  Arrive(Expect(tokens, 0, 1)[0]);
  EXPECT_THAT(SpillAll(), SizeIs(1));
  EvictAll();
  EXPECT_EQ(Acquire(tokens).pages[0].state, PageState::kSsd);
  EndSession(kMe);
}

TEST_F(ArriveTest, ABlockThatIsCopiedElsewhereStaysMeanwhile) {
  const Tokens tokens = Count(1, 40);
  Store(tokens);
  const Acquired held = index_.LeaseBlock(space_, {tokens, {}}, 1, kOther);
  ASSERT_TRUE(held.lease);
  EXPECT_THAT(held.pages, SizeIs(1));
  EXPECT_EQ(held.pages[0].first_token, 16u);
  EvictAll();
  EXPECT_EQ(index_.LeasedPages(held.lease, {}, 40).value()[0].state, PageState::kRam);
  EXPECT_TRUE(index_.Release(held.lease).ok());
  EvictAll();
  EXPECT_FALSE(index_.LeaseBlock(space_, {tokens, {}}, 1, kOther).lease);
  EXPECT_FALSE(index_.LeaseBlock(space_, {tokens, {}}, 2, kOther).lease);  // it is not whole
}

class FullArriveTest : public ArriveTest {
 protected:
  FullArriveTest() : ArriveTest(16, {1}, {.limits = {.memory_limit_bytes = 1}}) {}
};

TEST_F(FullArriveTest, NothingIsExpectedThatTheIndexHasNoMemoryFor) {
  EXPECT_THAT(Expect(Count(1, 32), 0, 2), IsEmpty());
}

}  // namespace
}  // namespace prefixd::index
