// Reserve, Publish, ends.
#include <gmock/gmock.h>

#include "index_fixture.h"

namespace prefixd::index {
namespace {

using block::BlockState;
using block::StoreResult;
using testing::ElementsAre;

std::vector<BlockState> StatesOf(const block::ReservePlan& plan) {
  std::vector<BlockState> states;
  for (const block::BlockPlan& block : plan.blocks) states.push_back(block.state);
  return states;
}

TEST_F(IndexTest, APlanSaysWhatIsMissingAndWhatOthersWillWrite) {
  const Tokens stored = Count(1, 40);
  Store(FirstOf(stored, 16));
  Reserve({FirstOf(stored, 32), {}}, kOther);
  EXPECT_THAT(StatesOf(reserved_.plan), ElementsAre(BlockState::kPresent, BlockState::kYours));
  Reserve({stored, {}});
  EXPECT_THAT(StatesOf(reserved_.plan),
              ElementsAre(BlockState::kPresent, BlockState::kPending, BlockState::kYours));
}

TEST_F(IndexTest, WhatOthersAnnouncedIsPendingUntilTheyGiveUp) {
  const Tokens stored = Count(1, 40);
  Store(FirstOf(stored, 16));
  const auto id = Reserve({stored, {}}, kOther);
  EXPECT_EQ(Match(stored).pending_tokens, 24u);
  EXPECT_EQ(Match(Join(FirstOf(stored, 20), {99})).pending_tokens, 4u);
  EXPECT_EQ(Match(stored, {.max_tokens = 30}).pending_tokens, 14u);
  EXPECT_EQ(Match(stored, {}, kOther).pending_tokens, 0u);
  EXPECT_TRUE(index_.CloseReservation(id).ok());
  EXPECT_EQ(Match(stored).pending_tokens, 0u);
}

TEST_F(IndexTest, TheStartOfALongerTailIsPresentAndKeepsOnlyItsEnd) {
  const Tokens stored = Count(1, 30);
  Store(stored);
  const Stored shorter = Store(FirstOf(stored, 20));
  EXPECT_EQ(shorter.plan.back().state, BlockState::kPresent);
  EXPECT_EQ(Summary().stored_tokens, 30u);
  EXPECT_EQ(Summary().ends, 2u);
}

TEST_F(IndexTest, OfTwoWritersTheFirstWinsAndTheSecondIsADuplicate) {
  const Tokens stored = Count(1, 20);
  const auto mine = Reserve({stored, {}});
  const Reserved my_plan = reserved_;
  const auto other = Reserve({stored, {}}, kOther);
  for (uint32_t i = 0; i < 2; ++i) {
    const NewPage first = MakePage(), second = MakePage();
    EXPECT_EQ(index_.Publish(other, i, {&first, 1}).value(), StoreResult::kStored);
    EXPECT_EQ(index_.Publish(mine, i, {&second, 1}).value(), StoreResult::kDuplicate);
    EXPECT_THAT(index_.TakeFreed(), ElementsAre(second.extent));
  }
  EXPECT_TRUE(index_.AddEnd(mine, 20).ok());
  EXPECT_TRUE(index_.AddEnd(other, 20).ok());
  EXPECT_EQ(Summary().ends, 1u);
}

TEST_F(IndexTest, AParentPublishedByAnotherWriterCounts) {
  const Tokens stored = Count(1, 32);
  const auto mine = Reserve({stored, {}});
  const auto other = Reserve({stored, {}}, kOther);
  const NewPage first = MakePage(), second = MakePage();
  EXPECT_TRUE(absl::IsFailedPrecondition(index_.Publish(mine, 1, {&second, 1}).status()));
  EXPECT_TRUE(index_.Publish(other, 0, {&first, 1}).ok());
  EXPECT_EQ(index_.Publish(mine, 1, {&second, 1}).value(), StoreResult::kStored);
}

TEST_F(IndexTest, AReservationKeepsItsPathInTheTreeWhileThePagesGo) {
  const Tokens stored = Count(1, 48);
  Store(FirstOf(stored, 32));
  SpillAll();
  const auto id = Reserve({stored, {}});
  EvictAll();
  index_.DropSsdRange(0, ~uint64_t{0});
  EXPECT_EQ(Summary().holes, 2u);
  const NewPage page = MakePage();
  EXPECT_EQ(index_.Publish(id, 2, {&page, 1}).value(), StoreResult::kStored);
  EXPECT_TRUE(index_.CloseReservation(id).ok());
  EvictAll();
  EXPECT_EQ(Summary().holes, 0u);
}

TEST_F(IndexTest, AnEndBeyondWhatIsStoredIsRefused) {
  const Tokens stored = Count(1, 40);
  const auto id = Reserve({stored, {}});
  const NewPage page = MakePage();
  ASSERT_TRUE(index_.Publish(id, 0, {&page, 1}).ok());
  EXPECT_TRUE(index_.AddEnd(id, 10).ok());
  EXPECT_TRUE(index_.AddEnd(id, 16).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(index_.AddEnd(id, 17)));
  EXPECT_TRUE(absl::IsInvalidArgument(index_.AddEnd(id, 41)));
}

TEST_F(IndexTest, BadPagesAreRefusedAndStayTheCallers) {
  const Tokens stored = Count(1, 16);
  const auto id = Reserve({stored, {}});
  const NewPage stranger = MakePage(1, 0), unknown = MakePage(0, 1), twice = MakePage();
  const std::vector<NewPage> doubled = {twice, twice};
  for (const std::span<const NewPage> pages :
       {std::span(&stranger, 1), std::span(&unknown, 1), std::span<const NewPage>(doubled),
        std::span<const NewPage>()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(index_.Publish(id, 0, pages).status()));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(index_.Publish(id, 1, {&twice, 1}).status()));
  EXPECT_TRUE(index_.TakeFreed().empty());
  EXPECT_TRUE(absl::IsInvalidArgument(index_.Reserve(space_, {}, {}, kMe).status()));
  const Tokens endless(block::kMaxTokens + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(index_.Reserve(space_, {endless, {}}, {}, kMe).status()));
}

TEST_F(IndexTest, ClearMakesReservationsVoidAndFreesWhatNobodyHolds) {
  const Tokens stored = Count(1, 32);
  Store(stored);
  const Acquired acquired = Acquire(FirstOf(stored, 16));
  const auto id = Reserve({Join(stored, {1}), {}});
  EXPECT_EQ(index_.Clear(space_), 2 * kPageBytes);
  EXPECT_EQ(Match(stored).matched_tokens, 0u);
  EXPECT_EQ(index_.TakeFreed().size(), 1u);
  const NewPage page = MakePage();
  EXPECT_TRUE(absl::IsFailedPrecondition(index_.Publish(id, 2, {&page, 1}).status()));
  EXPECT_TRUE(index_.Release(acquired.lease).ok());
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(acquired.pages[0].extent));
  EXPECT_TRUE(index_.CloseReservation(id).ok());
}

class SmallMemoryTest : public IndexTest {
 protected:
  SmallMemoryTest() : IndexTest(16, {1}, {.limits = {.memory_limit_bytes = 20'000}}) {}
};

TEST_F(SmallMemoryTest, BeyondTheMemoryLimitBlocksAreRefusedUntilSomeAreForgotten) {
  StoreResult result = StoreResult::kStored;
  for (uint32_t i = 0; i < 100 && result == StoreResult::kStored; ++i) {
    const Tokens tokens = Count(1000 * i, 16);
    const auto id = Reserve({tokens, {}});
    const NewPage page = MakePage();
    result = index_.Publish(id, 0, {&page, 1}).value();
    EXPECT_TRUE(index_.CloseReservation(id).ok());
  }
  EXPECT_EQ(result, StoreResult::kRefused);
  EXPECT_EQ(index_.TakeFreed().size(), 1u);
  SpillAll();
  EvictAll();
  index_.TrimMemory(10'000);
  EXPECT_LE(index_.Counts().memory_bytes, 10'000u);
  EXPECT_EQ(Store(Count(7, 16)).results[0], StoreResult::kStored);
}

}  // namespace
}  // namespace prefixd::index
