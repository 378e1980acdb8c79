// A daemon that starts finds pages in the arena: what it takes over, checks and lets go.
#include <gmock/gmock.h>

#include "index_fixture.h"

namespace prefixd::index {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using enum PrefixIndex::PromotionFailure;

class AdoptTest : public IndexTest {
 protected:
  // The pages of `stored`, block by block, as an earlier daemon would have left them.
  std::vector<AdoptedPage> PagesOf(const Tokens& stored) {
    const auto id = Reserve({stored, {}});
    std::vector<AdoptedPage> pages;
    for (size_t i = 0; i < reserved_.plan.blocks.size(); ++i) {
      const block::BlockPlan& plan = reserved_.plan.blocks[i];
      const auto begin = stored.begin() + plan.first_token;
      // What the tree has is known under its serial there.
      const uint64_t own = plan.state == block::BlockState::kPresent
                               ? index_.SerialsFor(id, static_cast<uint32_t>(i)).value().own
                               : stored.front() * 1000 + i;
      pages.push_back({.name = reserved_.names[i],
                       .serials = {.own = plan.tokens == 16 ? own : 0,
                                   .parent = i == 0 ? 0 : pages[i - 1].serials.own},
                       .first_token = plan.first_token,
                       .tokens = {begin, begin + plan.tokens},
                       .content = {},
                       .ends = {},
                       .last_use = static_cast<int64_t>(i),
                       .page = MakePage()});
    }
    EXPECT_TRUE(index_.CloseReservation(id).ok());
    return pages;
  }
  std::vector<PageRef> AdoptAll(const std::vector<AdoptedPage>& pages) {
    std::vector<PageRef> refs;
    for (const AdoptedPage& page : pages) refs.push_back(index_.Adopt(space_, page).value());
    return refs;
  }
  bool BeginCheck(const PageRef& page) {
    const auto now = std::chrono::steady_clock::now();
    return index_.BeginCheck(page, index_.WaitWhilePromoting(page, now).extent);
  }
  void Verify(const PageRef& page) {
    ASSERT_TRUE(BeginCheck(page));
    const auto now = std::chrono::steady_clock::now();
    index_.FinishPromotion(page, index_.WaitWhilePromoting(page, now).extent);
  }
  PageState StateOf(const PageRef& page) {
    return index_.WaitWhilePromoting(page, std::chrono::steady_clock::now()).state;
  }
};

TEST_F(AdoptTest, AdoptedPagesAreHitsThatMustBeCheckedFirst) {
  const Tokens stored = Count(1, 40);
  const auto pages = PagesOf(stored);
  const auto refs = AdoptAll(pages);
  index_.PruneHoles();
  const auto answer = Match(stored);
  EXPECT_EQ(answer.restorable_tokens, 40u);
  EXPECT_EQ(answer.ram_bytes, 3 * kPageBytes);
  EXPECT_EQ(index_.Counts().dirty_bytes, 3 * block::kExtentUnit);
  const Acquired acquired = Acquire(stored, {.slot = 1});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(acquired.pages[i].ref, refs[i]);
    EXPECT_EQ(acquired.pages[i].state, PageState::kUnverified);
    EXPECT_EQ(acquired.pages[i].extent, pages[i].page.extent);
  }
  Verify(refs[0]);
  EXPECT_EQ(Acquire(stored).pages[0].state, PageState::kRam);
  EXPECT_EQ(Acquire(stored).pages[0].extent, pages[0].page.extent);
  EXPECT_EQ(MarksOf(pages[0].page.extent).ReadHolders(), 2u);
}

TEST_F(AdoptTest, WhileUnverifiedAPageIsNeitherSpilledNorMovedNorGivenUpForItsPlace) {
  const auto refs = AdoptAll(PagesOf(Count(1, 16)));
  index_.PruneHoles();
  EXPECT_FALSE(index_.EvictOne(false).has_value()) << "it is nowhere else";
  EXPECT_EQ(index_.EvictRange(0, ~uint64_t{0}, true).pages, 0u);
  EXPECT_TRUE(index_.PickSpill(~uint64_t{0}).empty());
  EXPECT_TRUE(index_.PickMovable(0, ~uint64_t{0}).empty());
  Verify(refs[0]);
  EXPECT_EQ(SpillAll().size(), 1u);
  EXPECT_TRUE(index_.EvictOne(false).has_value());
}

TEST_F(AdoptTest, AParentIsNotGivenUpBeforeItsUnverifiedChild) {
  const auto pages = PagesOf(Count(1, 32));
  const auto refs = AdoptAll(pages);
  index_.PruneHoles();
  Verify(refs[0]);
  EXPECT_EQ(index_.EvictOne(true)->pages, 1u);
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(pages[1].page.extent));
  EvictAll();
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(pages[0].page.extent));
}

// What was used last is verified first, and must not go for that.
TEST_F(AdoptTest, TheColdestIsGivenUpFirstVerifiedOrNot) {
  auto hot = PagesOf(Count(1, 16)), cold = PagesOf(Count(101, 16));
  hot[0].last_use = 200;
  cold[0].last_use = 100;
  const auto refs = AdoptAll({hot[0], cold[0]});
  index_.PruneHoles();
  Verify(refs[0]);
  EXPECT_EQ(index_.EvictOne(true)->dropped_pages, 1u);
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(cold[0].page.extent));
  EXPECT_EQ(StateOf(refs[0]), PageState::kRam);
}

TEST_F(AdoptTest, AnUnverifiedPageThatIsOnSsdTooIsReadFromThereOnceItIsGivenUp) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  SpillAll();
  EvictAll();
  index_.TakeFreed();
  const auto pages = PagesOf(stored);
  const auto refs = AdoptAll(pages);
  index_.PruneHoles();
  EXPECT_EQ(StateOf(refs[0]), PageState::kUnverified);
  EXPECT_EQ(index_.EvictOne(false)->dropped_pages, 0u);
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(pages[0].page.extent));
  EXPECT_EQ(Acquire(stored).pages[0].state, PageState::kSsd);
}

TEST_F(AdoptTest, AReadersUnverifiedPageIsNotGivenUp) {
  auto pages = PagesOf(Count(1, 16));
  MarksOf(pages[0].page.extent).SetHolders(2);
  const auto refs = AdoptAll(pages);
  ASSERT_TRUE(index_.AdoptLease({5}, 1, refs));
  index_.PruneHoles();
  EXPECT_FALSE(index_.EvictOne(true).has_value());
}

TEST_F(AdoptTest, NothingIsGivenUpBeforeAllIsAdopted) {
  AdoptAll(PagesOf(Count(1, 16)));
  EXPECT_FALSE(index_.EvictOne(true).has_value()) << "its children may come";
  index_.PruneHoles();
  EXPECT_TRUE(index_.EvictOne(true).has_value());
}

TEST_F(AdoptTest, ChildrenAreAdoptedOnlyBelowTheirParents) {
  const auto pages = PagesOf(Count(1, 32));
  EXPECT_TRUE(absl::IsNotFound(index_.Adopt(space_, pages[1]).status()));
  AdoptAll({pages[0], pages[1]});
  EXPECT_EQ(Match(Count(1, 32)).restorable_tokens, 32u);
  EXPECT_THAT(index_.TakeFreed(), IsEmpty());
}

TEST_F(AdoptTest, AChildOfABlockThatIsOnSsdOnlyIsAdopted) {
  const Tokens stored = Count(1, 32);
  Store(FirstOf(stored, 16));
  SpillAll();
  EvictAll();
  AdoptAll({PagesOf(stored)[1]});
  EXPECT_EQ(Match(stored).restorable_tokens, 32u);
  EXPECT_EQ(Match(stored).ssd_bytes, kPageBytes);
}

TEST_F(AdoptTest, RecordsThatDoNotFitTheirNameAreDataLoss) {
  const AdoptedPage right = PagesOf(Count(1, 16))[0];
  const auto refused = [&](auto&& change) {
    AdoptedPage page = right;
    change(page);
    return absl::IsDataLoss(index_.Adopt(space_, page).status());
  };
  EXPECT_TRUE(refused([](AdoptedPage& page) { page.tokens[3] ^= 1; }));
  EXPECT_TRUE(refused([](AdoptedPage& page) { page.name.hash[0] ^= std::byte{1}; }));
  EXPECT_TRUE(refused([](AdoptedPage& page) { page.first_token = 16; }));
  EXPECT_TRUE(refused([](AdoptedPage& page) { page.tokens.clear(); }));
  EXPECT_TRUE(refused([](AdoptedPage& page) { page.ends = {17}; }));
  EXPECT_TRUE(refused([](AdoptedPage& page) { page.page.rung = 1; }));
  EXPECT_TRUE(refused([](AdoptedPage& page) { page.page.extent = {}; }));
  EXPECT_TRUE(index_.Adopt(space_, right).ok());
}

TEST_F(AdoptTest, ASecondCopyAndAStartOfALongerBlockStayTheCallers) {
  const Tokens stored = Count(1, 30);
  const auto pages = PagesOf(stored);
  auto shorter = PagesOf(FirstOf(stored, 20));
  AdoptAll(pages);
  auto again = PagesOf(stored);
  EXPECT_TRUE(absl::IsAlreadyExists(index_.Adopt(space_, again[1]).status()));
  shorter[1].ends = {4};
  EXPECT_TRUE(absl::IsAlreadyExists(index_.Adopt(space_, shorter[1]).status()));
  EXPECT_EQ(Match(FirstOf(stored, 20)).kind, block::MatchKind::kExact);  // its end is kept
  EXPECT_THAT(index_.TakeFreed(), IsEmpty());
}

TEST_F(AdoptTest, APageThatIsOnSsdTooIsCleanAndSpilledNoMore) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  SpillAll();
  EvictAll();
  index_.TakeFreed();
  const auto refs = AdoptAll(PagesOf(stored));
  EXPECT_EQ(index_.Counts().clean_bytes, block::kExtentUnit);
  EXPECT_EQ(index_.Counts().dirty_bytes, 0u);
  EXPECT_EQ(Summary().ssd_page_bytes, kPageBytes);
  Verify(refs[0]);
  EXPECT_TRUE(SpillAll().empty());
  EXPECT_EQ(index_.EvictOne(false)->dropped_pages, 0u);
}

TEST_F(AdoptTest, AnSsdCopyWithAnotherCheckIsAnOlderPage) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  SpillAll();
  EvictAll();
  auto pages = PagesOf(stored);
  pages[0].page.check = 2;
  const auto refs = AdoptAll(pages);
  EXPECT_EQ(index_.Counts().dirty_bytes, block::kExtentUnit);
  Verify(refs[0]);
  EXPECT_EQ(SpillAll().size(), 1u);
}

TEST_F(AdoptTest, ARecordFromSsdThatComesAfterwardsIsMergedToo) {
  const Tokens stored = Count(1, 16);
  auto pages = PagesOf(stored);
  const auto refs = AdoptAll(pages);
  RestoredBlock record{.hash = pages[0].name.hash,
                       .parent = pages[0].name.parent,
                       .serials = pages[0].serials,
                       .other_serials = {},
                       .tokens = stored,
                       .content = {},
                       .ends = {},
                       .pages = {{.group = 0,
                                  .rung = 0,
                                  .tokens = 16,
                                  .page_bytes = kPageBytes,
                                  .payload_bytes = 900,
                                  .check = 1,
                                  .ssd_sequence = 40}},
                       .record_sequence = 41};
  EXPECT_TRUE(index_.Restore(space_, record).ok());
  Verify(refs[0]);
  EXPECT_EQ(StateOf(refs[0]), PageState::kRamAndSsd);
}

TEST_F(AdoptTest, ACorruptPageIsGoneOrReadFromSsd) {
  const Tokens dirty = Count(1, 16), clean = Count(100, 16);
  Store(clean);
  SpillAll();
  EvictAll();
  index_.TakeFreed();
  auto pages = PagesOf(dirty);
  pages.push_back(PagesOf(clean)[0]);
  const auto refs = AdoptAll(pages);
  for (const PageRef& page : refs) {
    ASSERT_TRUE(BeginCheck(page));
    index_.FailPromotion(page, kCorrupt);
  }
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(pages[0].page.extent, pages[1].page.extent));
  EXPECT_EQ(Match(dirty).matched_tokens, 0u);
  EXPECT_EQ(Match(clean).ssd_bytes, kPageBytes);
  EXPECT_EQ(StateOf(refs[1]), PageState::kSsd);
}

// Somebody who saw it in RAM would check, and hand out, an extent that is others' meanwhile.
TEST_F(AdoptTest, APageThatLeftRamSinceItWasSeenIsNotCheckedThere) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  SpillAll();
  EvictAll();
  AdoptAll(PagesOf(stored));
  index_.PruneHoles();
  const PageInfo seen = index_.Unverified(1).at(0);
  ASSERT_TRUE(index_.EvictOne(false).has_value());
  EXPECT_FALSE(index_.BeginCheck(seen.ref, seen.extent));
  EXPECT_EQ(StateOf(seen.ref), PageState::kSsd);
  ASSERT_TRUE(index_.BeginPromotion(seen.ref));
  const block::Extent other{.offset = seen.extent.offset + seen.extent.bytes,
                            .bytes = seen.extent.bytes};
  EXPECT_TRUE(index_.FinishPromotion(seen.ref, other));
  EXPECT_EQ(index_.WaitWhilePromoting(seen.ref, std::chrono::steady_clock::now()).extent, other);
}

// Somebody who saw it on SSD would bring an extent that nobody takes.
TEST_F(AdoptTest, APageThatWasAdoptedSinceItWasSeenIsNotReadFromSsd) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  SpillAll();
  EvictAll();
  const PageRef seen = Acquire(stored).pages[0].ref;
  const auto refs = AdoptAll(PagesOf(stored));
  ASSERT_EQ(refs[0], seen);
  EXPECT_FALSE(index_.BeginPromotion(seen));
  EXPECT_TRUE(BeginCheck(seen));
}

TEST_F(AdoptTest, ACheckThatCouldNotBeMadeLeavesThePageAsItWas) {
  const auto pages = PagesOf(Count(1, 16));
  const auto refs = AdoptAll(pages);
  ASSERT_TRUE(BeginCheck(refs[0]));
  EXPECT_FALSE(BeginCheck(refs[0]));
  EXPECT_EQ(StateOf(refs[0]), PageState::kPromoting);
  index_.FailPromotion(refs[0], kTryAgain);
  EXPECT_EQ(StateOf(refs[0]), PageState::kUnverified);
  Verify(refs[0]);
}

TEST_F(AdoptTest, ACopyThatIsDroppedOnSsdWhileItIsCheckedMakesThePageDirty) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  SpillAll();
  EvictAll();
  const auto refs = AdoptAll(PagesOf(stored));
  ASSERT_TRUE(BeginCheck(refs[0]));
  index_.DropSsdRange(0, ~uint64_t{0});
  index_.FinishPromotion(refs[0], {});
  EXPECT_EQ(StateOf(refs[0]), PageState::kRam);
  EXPECT_EQ(index_.Counts().dirty_bytes, block::kExtentUnit);
}

TEST_F(AdoptTest, ACorruptPageThatIsHeldIsFreeOnlyWhenItsReadersAreGone) {
  auto pages = PagesOf(Count(1, 16));
  pages[0].page.marks->SetHolders(1u << 6);
  const auto refs = AdoptAll(pages);
  const block::LeaseId lease = index_.AdoptLease(kOther, 6, refs);
  index_.PruneHoles();
  ASSERT_TRUE(BeginCheck(refs[0]));
  index_.FailPromotion(refs[0], kCorrupt);
  EXPECT_EQ(Match(Count(1, 16)).restorable_tokens, 0u);
  EXPECT_THAT(index_.TakeFreed(), IsEmpty());
  EXPECT_EQ(pages[0].page.marks->ReadHolders(), 1u << 6);  // for the daemon after the next kill
  Store(Count(1, 16));
  EXPECT_TRUE(index_.Release(lease).ok());
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(pages[0].page.extent));
  EXPECT_EQ(Match(Count(1, 16)).restorable_tokens, 16u);
}

TEST_F(AdoptTest, WhatAnEarlierSessionReadsStaysUntilItsLeaseEnds) {
  const Tokens stored = Count(1, 32);
  auto pages = PagesOf(stored);
  for (AdoptedPage& page : pages) page.page.marks->SetHolders(1u << 6 | 1u << 9);
  const auto refs = AdoptAll(pages);
  const block::LeaseId lease = index_.AdoptLease(kOther, 6, refs);
  index_.PruneHoles();
  for (const PageRef& page : refs) Verify(page);
  EvictAll();
  EXPECT_THAT(index_.TakeFreed(), IsEmpty());
  EXPECT_NE(pages[1].page.marks->ReadHolders() & 1u << 6, 0u);
  EXPECT_EQ(index_.ListLeases()[0].pages, 2u);
  EXPECT_EQ(index_.ListLeases()[0].session, kOther);
  EXPECT_TRUE(index_.Release(lease).ok());
  EXPECT_EQ(pages[1].page.marks->ReadHolders(), 0u);
  EvictAll();
  EXPECT_EQ(index_.TakeFreed().size(), 2u);
}

TEST_F(AdoptTest, ATailThatIsSupersededWhileAdoptingStaysForItsReader) {
  const Tokens stored = Count(1, 16);
  auto tail = PagesOf(FirstOf(stored, 9));
  tail[0].page.marks->SetHolders(1);
  const auto refs = AdoptAll(tail);
  AdoptAll(PagesOf(stored));
  EXPECT_THAT(index_.TakeFreed(), IsEmpty());
  const block::LeaseId lease = index_.AdoptLease(kOther, 0, refs);
  index_.PruneHoles();
  EXPECT_THAT(index_.TakeFreed(), IsEmpty());
  EXPECT_TRUE(index_.Release(lease).ok());
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(tail[0].page.extent));
}

TEST_F(AdoptTest, BitsOfReadersThatAreGoneAreClearedWhenAdoptionEnds) {
  auto pages = PagesOf(Count(1, 16));
  pages[0].page.marks->SetHolders(1u << 20);
  const auto refs = AdoptAll(pages);
  EXPECT_EQ(pages[0].page.marks->ReadHolders(), 1u << 20);  // until then nobody knows
  index_.PruneHoles();
  EXPECT_EQ(pages[0].page.marks->ReadHolders(), 0u);
  Verify(refs[0]);
  EvictAll();
  EXPECT_EQ(index_.TakeFreed().size(), 1u);
}

TEST_F(AdoptTest, AdoptedPathsAreOrderedByTheirLastUse) {
  const Tokens first = Count(1, 32), second = Count(100, 16);
  auto pages = PagesOf(first);
  pages[0].last_use = 10;
  pages[1].last_use = 90;
  auto other = PagesOf(second);
  other[0].last_use = 50;
  AdoptAll(pages);
  AdoptAll(other);
  index_.PruneHoles();
  std::vector<uint32_t> starts;
  for (const PageInfo& page : index_.Unverified(10)) {
    starts.push_back(page.name.block == pages[0].name.hash   ? 1
                     : page.name.block == pages[1].name.hash ? 17
                                                             : 100);
  }
  EXPECT_THAT(starts, ElementsAre(1, 17, 100));
  EXPECT_EQ(index_.Unverified(2).size(), 2u);
  for (const PageInfo& page : index_.Unverified(10)) Verify(page.ref);
  EXPECT_THAT(index_.Unverified(10), IsEmpty());
  index_.EvictOne(true);
  EXPECT_EQ(Match(second).restorable_tokens, 0u);
  index_.EvictOne(true);
  EXPECT_EQ(Match(first).restorable_tokens, 16u);
}

TEST_F(AdoptTest, ADescribedPageCanBeAdoptedAgain) {
  const Tokens stored = Count(1, 24);
  Store(stored);
  Store(FirstOf(stored, 20));
  std::vector<AdoptedPage> pages;
  std::vector<PageRef> refs;
  for (const PageInfo& page : Acquire(stored).pages) {
    const BlockDescription block = index_.Describe(page.ref).value();
    refs.push_back(page.ref);
    pages.push_back({.name = block.name,
                     .serials = block.serials,
                     .first_token = block.first_token,
                     .tokens = block.tokens,
                     .content = block.content,
                     .ends = block.ends,
                     .last_use = 1,
                     .page = MakePage()});
  }
  EXPECT_THAT(pages[1].ends, ElementsAre(4, 8));
  index_.Clear(space_);
  EXPECT_FALSE(index_.Describe(refs[0]).has_value());
  EndSession(kMe);
  EXPECT_FALSE(index_.Describe(refs[0]).has_value());
  AdoptAll(pages);
  EXPECT_EQ(Match(FirstOf(stored, 20)).kind, block::MatchKind::kExact);
  EXPECT_EQ(MarksOf(pages[1].page.extent).ends[0].load(), 1u << 3 | 1u << 7);
}

// Two writers of one block: what the second wrote beside its pages names the first one's block.
TEST_F(AdoptTest, T1RecordsOfASecondWriterAreWrittenAgainUnderTheSerialsOfTheTree) {
  const Tokens tokens = Count(1, 32);
  const auto mine = Reserve({tokens, {}}), other = Reserve({tokens, {}}, kOther);
  const Serials early = index_.SerialsFor(mine, 0).value();
  EXPECT_EQ(early.parent, 0u);
  EXPECT_TRUE(absl::IsFailedPrecondition(index_.SerialsFor(mine, 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(index_.SerialsFor(mine, 2).status()));
  const Serials first = index_.SerialsFor(other, 0).value();
  EXPECT_NE(first, early);
  EXPECT_TRUE(index_.Publish(other, 0, std::vector{MakePage()}, first).ok());
  const NewPage page = MakePage();
  EXPECT_TRUE(absl::IsAborted(index_.Publish(mine, 0, std::vector{page}, early).status()));
  EXPECT_EQ(index_.SerialsFor(mine, 0).value(), first);
  EXPECT_EQ(index_.Publish(mine, 0, std::vector{page}, first).value(),
            block::StoreResult::kDuplicate);
  const Serials child = index_.SerialsFor(mine, 1).value();
  EXPECT_EQ(child.parent, first.own);
  Serials wrong = child;
  ++wrong.parent;
  EXPECT_TRUE(absl::IsAborted(index_.Publish(mine, 1, std::vector{MakePage()}, wrong).status()));
  wrong = {.own = first.own, .parent = child.parent};  // another block's
  EXPECT_TRUE(absl::IsAborted(index_.Publish(mine, 1, std::vector{MakePage()}, wrong).status()));
  EXPECT_TRUE(index_.Publish(mine, 1, std::vector{MakePage()}, child).ok());
  EXPECT_EQ(Match(tokens).restorable_tokens, 32u);
}

}  // namespace
}  // namespace prefixd::index
