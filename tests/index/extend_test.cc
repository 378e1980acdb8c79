// A lease goes on: extended by its session, joined by another, given to the writer of what it
// holds.
#include <gmock/gmock.h>

#include <random>

#include "index_fixture.h"

namespace prefixd::index {
namespace {

using block::ShortenReason;
using testing::ElementsAre;

class ExtendTest : public IndexTest {
 protected:
  using IndexTest::IndexTest;
  absl::StatusOr<Acquired> Extend(const Acquired& lease, const Tokens& more,
                                  const MatchOptions& options = {},
                                  block::SessionId session = kMe) {
    return index_.Extend(lease.lease, lease.answer.restorable_tokens, {more, {}}, options, session);
  }
  static std::vector<uint32_t> StartsOf(const std::vector<PageInfo>& pages) {
    std::vector<uint32_t> starts;
    for (const PageInfo& page : pages) starts.push_back(page.first_token);
    return starts;
  }
};

TEST_F(ExtendTest, OnlyNewBlocksAreAnswered) {
  const Tokens stored = Count(1, 72);
  Store(stored);
  const Acquired lease = Acquire(FirstOf(stored, 32), {.slot = 2});
  const Acquired more = Extend(lease, Count(33, 50), {.slot = 2}).value();
  EXPECT_EQ(more.lease, lease.lease);
  EXPECT_EQ(more.answer.restorable_tokens, 72u);
  EXPECT_EQ(more.answer.matched_tokens, 72u);
  EXPECT_EQ(more.answer.kind, block::MatchKind::kPrefix);
  EXPECT_EQ(more.answer.ram_bytes, 3 * kPageBytes);
  EXPECT_THAT(StartsOf(more.pages), ElementsAre(32, 48, 64));
  EXPECT_EQ(more.pages[2].tokens, 8u);
  EXPECT_EQ(MarksOf(more.pages[2].extent).holders.load(), 4u);
  EXPECT_EQ(index_.ListLeases()[0].tokens, 72u);
  EXPECT_EQ(index_.ListLeases()[0].pages, 5u);
  EvictAll();
  EXPECT_TRUE(index_.TakeFreed().empty());
}

TEST_F(ExtendTest, APartialBlockIsWalkedAgainAndBothItsPagesAreHeld) {
  const Tokens stored = Count(1, 40);
  Store(FirstOf(stored, 20));
  const Acquired lease = Acquire(FirstOf(stored, 20));
  Store(stored);  // supersedes the tail
  const Acquired more = Extend(lease, Count(21, 20)).value();
  EXPECT_EQ(more.answer.restorable_tokens, 40u);
  EXPECT_THAT(StartsOf(more.pages), ElementsAre(16, 32));
  EXPECT_TRUE(index_.TakeFreed().empty());
  const Acquired again = Extend(more, {}).value();
  EXPECT_THAT(StartsOf(again.pages), ElementsAre(32));
  EXPECT_TRUE(index_.Release(lease.lease).ok());
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(lease.pages[1].extent));
}

TEST_F(ExtendTest, AnExtensionIsLeaseAfterLeaseAndStopsWhereNothingIsStored) {
  const Tokens stored = Count(1, 64);
  Store(stored);
  Acquired lease = Acquire(FirstOf(stored, 5));
  for (uint32_t tokens = 5; tokens < 64; ++tokens) {
    lease = Extend(lease, {tokens + 1}).value();
    ASSERT_EQ(lease.answer.restorable_tokens, tokens + 1);
  }
  EXPECT_EQ(index_.ListLeases()[0].pages, 4u);
  lease = Extend(lease, {7, 7}).value();
  EXPECT_EQ(lease.answer.restorable_tokens, 64u);
  EXPECT_TRUE(lease.pages.empty());
}

TEST_F(ExtendTest, ALeaseThatDoesNotCoverWhatTheCallerSaysIsNotFound) {
  const Tokens stored = Count(1, 48);
  Store(stored);
  const Acquired lease = Acquire(FirstOf(stored, 32));
  const auto extend = [&](uint32_t tokens, const MatchOptions& options, block::SessionId session) {
    return index_.Extend(lease.lease, tokens, {Count(33, 16), {}}, options, session).status();
  };
  EXPECT_TRUE(absl::IsNotFound(extend(31, {}, kMe)));
  EXPECT_TRUE(absl::IsNotFound(extend(32, {}, kOther)));
  EXPECT_TRUE(absl::IsNotFound(extend(32, {.selection = {.groups = {}, .rungs = {2}}}, kMe)));
  EXPECT_TRUE(index_.ShrinkLease(lease.lease, 16).ok());
  EXPECT_TRUE(absl::IsNotFound(extend(32, {}, kMe)));
  EXPECT_TRUE(index_.Extend(lease.lease, 16, {Count(17, 32), {}}, {}, kMe)
                  .value()
                  .answer.restorable_tokens == 48);
  index_.Clear(space_);
  EXPECT_TRUE(absl::IsNotFound(extend(48, {}, kMe)));
  EXPECT_TRUE(index_.Release(lease.lease).ok());
  EXPECT_TRUE(absl::IsNotFound(extend(48, {}, kMe)));
}

TEST_F(ExtendTest, ALeaseThatLostAPageIsNotFound) {
  const Tokens stored = Count(1, 48);
  Store(stored);
  SpillAll();
  EvictAll();
  const Acquired lease = Acquire(FirstOf(stored, 32));
  ASSERT_TRUE(index_.BeginPromotion(lease.pages[0].ref));
  index_.FailPromotion(lease.pages[0].ref, PrefixIndex::PromotionFailure::kCorrupt);
  EXPECT_TRUE(absl::IsNotFound(Extend(lease, Count(33, 16)).status()));
  Store(stored);  // heals
  EXPECT_EQ(Extend(lease, Count(33, 16)).value().answer.restorable_tokens, 48u);
}

TEST_F(ExtendTest, FewerTokensThanTheLeaseHasGiveTheRestUp) {
  const Tokens stored = Count(1, 48);
  Store(stored);
  const Acquired lease = Acquire(stored);
  const Acquired less = Extend(lease, {}, {.max_tokens = 20}).value();
  EXPECT_EQ(less.answer.restorable_tokens, 20u);
  EXPECT_EQ(index_.ListLeases()[0].pages, 2u);
  EXPECT_EQ(Extend(less, Count(21, 28)).value().answer.restorable_tokens, 48u);
}

TEST_F(ExtendTest, PendingTokensAreThoseOfTheWholeSequence) {
  const Tokens stored = Count(1, 80);
  Store(FirstOf(stored, 32));
  const Acquired lease = Acquire(FirstOf(stored, 32));
  Reserve({stored, {}}, kOther);
  EXPECT_EQ(Extend(lease, Count(33, 48)).value().answer.pending_tokens, 48u);
  EXPECT_EQ(Extend(lease, Join(Count(33, 4), {9})).value().answer.pending_tokens, 4u);
  EXPECT_EQ(Acquire(stored).answer.pending_tokens, 48u);
}

TEST_F(ExtendTest, ACutInsideAContentRangeGoesBackIntoWhatWasHeld) {
  const block::ContentKey image{.start = 10, .item_offset = 0, .length = 30, .digest = {}};
  const Tokens stored(40, 5);
  const block::SequenceView whole{stored, {&image, 1}};
  const auto id = Reserve(whole);
  for (uint32_t i = 0; i < 2; ++i) {
    const NewPage page = MakePage();
    ASSERT_TRUE(index_.Publish(id, i, {&page, 1}).ok());
  }
  block::ContentKey head = image, rest = image;
  head.length = 22;
  rest.start = 0;
  rest.item_offset = 22;
  rest.length = 8;
  const Tokens first(32, 5), more(8, 5);
  const Acquired lease = index_.Acquire(space_, {first, {&head, 1}}, {}, kMe);
  EXPECT_EQ(lease.answer.restorable_tokens, 32u);
  const block::MatchAnswer expected = index_.Match(space_, whole, {}, kMe);
  EXPECT_EQ(expected.restorable_tokens, 10u);
  const Acquired cut = index_.Extend(lease.lease, 32, {more, {&rest, 1}}, {}, kMe).value();
  EXPECT_EQ(cut.answer.restorable_tokens, 10u);
  EXPECT_EQ(cut.answer.shortened_by, expected.shortened_by);
  EXPECT_EQ(index_.ListLeases()[0].pages, 1u);
}

// The same by Acquire of the whole: same answer, and in the end the same pages are held.
TEST_F(ExtendTest, ExtendingEqualsAcquiringTheWhole) {
  std::mt19937 engine(7);
  const auto random = [&] { return static_cast<uint32_t>(engine()); };
  const auto tokens = [&](uint32_t count) {
    Tokens drawn(count);
    for (block::Token& token : drawn) token = random() % 9 == 0 ? 1 : 0;
    return drawn;
  };
  for (uint32_t round = 0; round < 600; ++round) {
    if (round % 50 == 0) index_.Clear(space_);
    if (random() % 2 == 0) Store(tokens(1 + random() % 90));
    Tokens sequence = tokens(1 + random() % 40);
    Acquired extended = Acquire(sequence, {}, kMe);
    if (!extended.lease) continue;
    sequence.resize(extended.answer.restorable_tokens);
    std::vector<PageInfo> held = extended.pages;
    for (uint32_t step = 0; step < 4; ++step) {
      if (random() % 3 == 0) Store(Join(sequence, tokens(1 + random() % 30)));
      const Tokens whole = Join(sequence, tokens(random() % 30));
      MatchOptions options;
      if (random() % 4 == 0) options.max_tokens = random() % 60;
      const Acquired expected = Acquire(whole, options, kOther);
      const Tokens more(whole.begin() + static_cast<std::ptrdiff_t>(sequence.size()), whole.end());
      const auto got = Extend(extended, more, options);
      if (!got.ok()) {
        ASSERT_TRUE(absl::IsNotFound(got.status()));
        ASSERT_EQ(sequence.size(), 0u)
            << got.status();  // by max_tokens; else its blocks are all there
        EndSession(kOther);
        break;
      }
      extended = *got;
      const block::MatchAnswer &a = extended.answer, &b = expected.answer;
      ASSERT_EQ(a.matched_tokens, b.matched_tokens);
      ASSERT_EQ(a.restorable_tokens, b.restorable_tokens);
      ASSERT_EQ(a.kind, b.kind);
      ASSERT_EQ(a.ended_by, b.ended_by);
      ASSERT_EQ(a.diverged_sequences, b.diverged_sequences);
      ASSERT_EQ(a.shortened_by, b.shortened_by);
      const uint32_t old = static_cast<uint32_t>(sequence.size());
      sequence = FirstOf(whole, a.restorable_tokens);
      const uint32_t kept = old / 16 * 16;  // what was answered whole before
      std::erase_if(held, [&](const PageInfo& page) { return page.first_token >= kept; });
      held.insert(held.end(), extended.pages.begin(), extended.pages.end());
      std::erase_if(held, [&](const auto& page) { return page.first_token >= sequence.size(); });
      ASSERT_EQ(held.size(), expected.pages.size());
      for (size_t i = 0; i < held.size(); ++i) ASSERT_EQ(held[i].ref, expected.pages[i].ref);
      EndSession(kOther);
    }
    EndSession(kMe);
    ASSERT_TRUE(index_.Validate().ok()) << index_.Validate();
    ASSERT_EQ(index_.Counts().leased_bytes, 0u);
  }
}

TEST_F(ExtendTest, AnExtendedPathIsYoungWhenItIsReleased) {
  const Tokens path = Count(1, 32), other = Count(100, 16);
  Store(path);
  const Acquired lease = Acquire(FirstOf(path, 16));
  Store(other);
  ASSERT_TRUE(Extend(lease, Count(17, 16)).ok());
  EXPECT_TRUE(index_.Release(lease.lease).ok());
  index_.EvictOne(true);
  EXPECT_EQ(Match(other).restorable_tokens, 0u);
  EXPECT_EQ(Match(path).restorable_tokens, 32u);
}

// --- Join ---

TEST_F(ExtendTest, AJoinedLeaseHoldsThePagesUntilBothEnd) {
  const Tokens stored = Count(1, 40);
  Store(stored);
  const Acquired lease = Acquire(stored, {.slot = 1});
  const Acquired joined = index_.Join(lease.lease, {.slot = 2}, kOther).value();
  EXPECT_EQ(joined.answer.restorable_tokens, 40u);
  EXPECT_EQ(joined.answer.ram_bytes, 3 * kPageBytes);
  ASSERT_EQ(joined.pages.size(), 3u);
  EXPECT_EQ(MarksOf(joined.pages[0].extent).holders.load(), 2u | 4u);
  EXPECT_TRUE(index_.Release(lease.lease).ok());
  EvictAll();
  EXPECT_TRUE(index_.TakeFreed().empty());
  EXPECT_TRUE(absl::IsNotFound(index_.Join(lease.lease, {}, kOther).status()));
  EXPECT_TRUE(index_.Release(joined.lease).ok());
  EvictAll();
  EXPECT_EQ(index_.TakeFreed().size(), 3u);
}

TEST_F(ExtendTest, AJoinedLeaseCanBeExtendedByItsSession) {
  const Tokens stored = Count(1, 48);
  Store(stored);
  const Acquired lease = Acquire(FirstOf(stored, 20));
  const Acquired joined = index_.Join(lease.lease, {}, kOther).value();
  EXPECT_EQ(Extend(joined, Count(21, 28), {}, kOther).value().answer.restorable_tokens, 48u);
  EXPECT_EQ(index_.ListLeases()[0].tokens, 20u);
}

TEST_F(ExtendTest, WhatIsLostEndsAJoinedLease) {
  const Tokens stored = Count(1, 48);
  Store(stored);
  SpillAll();
  EvictAll();
  const Acquired lease = Acquire(stored);
  ASSERT_TRUE(index_.BeginPromotion(lease.pages[1].ref));
  index_.FailPromotion(lease.pages[1].ref, PrefixIndex::PromotionFailure::kCorrupt);
  const Acquired joined = index_.Join(lease.lease, {}, kOther).value();
  EXPECT_EQ(joined.answer.restorable_tokens, 16u);
  EXPECT_EQ(joined.pages.size(), 1u);
}

class TwoGroupTest : public ExtendTest {
 protected:
  TwoGroupTest() : ExtendTest(16, {1, 2}) {}
};

TEST_F(TwoGroupTest, AJoinedLeaseIsOfTheGroupsThatWereAskedFor) {
  const Tokens stored = Count(1, 32);
  Store(stored);
  const Acquired lease = Acquire(stored);
  const Acquired joined =
      index_.Join(lease.lease, {.selection = {.groups = {1}, .rungs = {}}}, kOther).value();
  ASSERT_EQ(joined.pages.size(), 2u);
  for (const PageInfo& page : joined.pages) EXPECT_EQ(page.ref.group, 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(
      index_.Join(joined.lease, {.selection = {.groups = {0}, .rungs = {}}}, kMe).status()));
  EXPECT_EQ(index_.Join(joined.lease, {}, kMe).value().pages.size(), 2u);
  const Acquired coarse =
      index_.Join(lease.lease, {.selection = {.groups = {}, .rungs = {1, 2}}}, kOther).value();
  EXPECT_FALSE(coarse.lease);
  EXPECT_EQ(coarse.answer.shortened_by[0].reason, ShortenReason::kFormat);
}

TEST_F(TwoGroupTest, APageInAFinerRungIsHeldBesideTheOneItReplaces) {
  const Tokens stored = Count(1, 20);
  Store({stored, {}}, Selection{.groups = {}, .rungs = {1, 2}});
  const Acquired lease = Acquire(stored);
  Store({stored, {}}, Selection{.groups = {}, .rungs = {1, 1}});
  const Acquired more = Extend(lease, {}).value();
  ASSERT_EQ(more.pages.size(), 2u);
  EXPECT_EQ(more.pages[1].ref.rung, 0u);
  EXPECT_EQ(index_.ListLeases()[0].pages, 5u);
}

// --- places as a table ---

TEST_F(TwoGroupTest, ATableSaysWhatThePagesSay) {
  const Tokens stored = Count(1, 40);
  Store({stored, {}}, Selection{.groups = {}, .rungs = {1, 2}});
  const Acquired listed = Acquire(stored);
  const Acquired lease = Acquire(FirstOf(stored, 37), {.slot = 3, .table = true});
  EXPECT_TRUE(lease.pages.empty());
  EXPECT_EQ(lease.answer.restorable_tokens, 37u);
  EXPECT_EQ(lease.answer.ram_bytes, 6 * kPageBytes);
  EXPECT_EQ(index_.ListLeases().back().pages, 6u);
  const block::PageTable& table = lease.table;
  EXPECT_THAT(table.groups, ElementsAre(0, 1));
  EXPECT_THAT(table.rungs, ElementsAre(0, 1));
  EXPECT_EQ(table.first_token, 0u);
  EXPECT_EQ(table.last_page_tokens, 8u);
  ASSERT_EQ(table.offsets.size(), listed.pages.size());
  for (size_t i = 0; i < listed.pages.size(); ++i) {
    EXPECT_EQ(table.offsets[i], listed.pages[i].extent.offset) << i;
    EXPECT_EQ(MarksOf(listed.pages[i].extent).holders.load(), 8u) << i;
  }
}

TEST_F(TwoGroupTest, AnExtendedTableHasTheNewBlocksOnly) {
  const Tokens stored = Count(1, 72);
  Store(stored);
  const Acquired listed = Acquire(stored);
  const Acquired lease = Acquire(FirstOf(stored, 32), {.table = true});
  const Acquired more = Extend(lease, Count(33, 40), {.table = true}).value();
  EXPECT_TRUE(more.pages.empty());
  EXPECT_EQ(more.answer.ram_bytes, 6 * kPageBytes);
  EXPECT_EQ(more.table.first_token, 32u);
  EXPECT_EQ(more.table.last_page_tokens, 8u);
  std::vector<uint64_t> wanted;
  for (const PageInfo& page : listed.pages) {
    if (page.first_token >= 32) wanted.push_back(page.extent.offset);
  }
  EXPECT_EQ(more.table.offsets, wanted);
}

TEST_F(TwoGroupTest, WhereATableCannotSayAllThePagesAreListed) {
  const Tokens mixed = Count(1, 32);
  Store({FirstOf(mixed, 16), {}}, Selection{.groups = {}, .rungs = {1, 2}});
  Store({mixed, {}}, Selection{.groups = {}, .rungs = {1, 3}});  // the second block in rung 0
  const Acquired rungs = Acquire(mixed, {.table = true});
  EXPECT_TRUE(rungs.table.groups.empty() && rungs.table.offsets.empty());
  ASSERT_EQ(rungs.pages.size(), 4u);
  EXPECT_NE(rungs.pages[2].ref.rung, rungs.pages[3].ref.rung);
  EXPECT_TRUE(index_.Release(rungs.lease).ok());
  const Tokens one_rung = Count(100, 32);
  Store(one_rung);
  SpillAll();
  EvictAll();
  const Acquired on_ssd = Acquire(one_rung, {.table = true});
  EXPECT_TRUE(on_ssd.table.groups.empty());
  EXPECT_EQ(on_ssd.pages.size(), 4u);
}

// --- what a writer gets ---

TEST_F(ExtendTest, AWriterGetsALeaseOnWhatItPublished) {
  const Tokens stored = Count(1, 40);
  Store(FirstOf(stored, 16));
  const auto id = Reserve({stored, {}});
  PublishAll(id, reserved_.plan);
  const Acquired acquired = index_.LeasePublished(id, 16, 40, 3);
  EXPECT_EQ(acquired.answer.restorable_tokens, 40u);
  EXPECT_THAT(StartsOf(acquired.pages), ElementsAre(16, 32));
  EXPECT_EQ(acquired.pages[1].tokens, 8u);
  EXPECT_EQ(MarksOf(acquired.pages[0].extent).holders.load(), 8u);
  EXPECT_EQ(index_.ListLeases()[0].session, kMe);
  const Acquired middle = index_.LeasePublished(id, 17, 32, 3);
  EXPECT_FALSE(middle.lease);
  EXPECT_EQ(middle.answer.restorable_tokens, 0u);
  // It does not begin at the start: nothing to extend.
  EXPECT_TRUE(absl::IsNotFound(Extend(acquired, {1}).status()));
  const Acquired whole = index_.LeasePublished(id, 0, 40, 3);
  EXPECT_EQ(whole.pages.size(), 3u);
  EXPECT_TRUE(Extend(whole, {41}).ok());
}

TEST_F(ExtendTest, APublishedLeaseEndsBeforeWhatIsNotStoredOrNotInRam) {
  const Tokens stored = Count(1, 64);
  const auto id = Reserve({stored, {}});
  for (uint32_t i = 0; i < 3; ++i) {
    const NewPage page = MakePage();
    ASSERT_TRUE(index_.Publish(id, i, {&page, 1}).ok());
  }
  EXPECT_EQ(index_.LeasePublished(id, 0, 64, 1).answer.restorable_tokens, 48u);
  EndSession(kMe);
  const auto again = Reserve({stored, {}});
  SpillAll();
  index_.EvictOne(false);
  EXPECT_EQ(index_.LeasePublished(again, 0, 64, 1).answer.restorable_tokens, 32u);
}

// --- quotas ---

class SmallQuotaTest : public ExtendTest {
 protected:
  SmallQuotaTest()
      : ExtendTest(16, {1},
                   {.limits = {.session_lease_bytes = 3 * block::kExtentUnit,
                               .total_lease_bytes = 4 * block::kExtentUnit}}) {}
};

TEST_F(SmallQuotaTest, AnExtensionStopsAtTheQuotaAndKeepsWhatItHas) {
  const Tokens stored = Count(1, 80);
  Store(stored);
  const Acquired lease = Acquire(FirstOf(stored, 32));
  const Acquired more = Extend(lease, Count(33, 48)).value();
  EXPECT_EQ(more.answer.restorable_tokens, 48u);
  EXPECT_EQ(more.answer.shortened_by.back().reason, ShortenReason::kLeaseQuota);
  const Acquired full = Extend(more, Count(49, 32)).value();
  EXPECT_EQ(full.answer.restorable_tokens, 48u);
  EXPECT_EQ(index_.Counts().leased_bytes, 3 * block::kExtentUnit);
}

TEST_F(SmallQuotaTest, APartialBlockThatCannotBeReplacedIsKept) {
  const Tokens stored = Count(1, 48);
  Store(FirstOf(stored, 40));
  const Acquired lease = Acquire(FirstOf(stored, 40));
  Store(stored);
  const Acquired more = Extend(lease, Count(41, 8)).value();
  EXPECT_EQ(more.answer.restorable_tokens, 40u);
  ASSERT_EQ(more.pages.size(), 1u);
  EXPECT_EQ(more.pages[0].extent, lease.pages[2].extent);
  EXPECT_EQ(more.answer.ram_bytes, kPageBytes);
}

TEST_F(SmallQuotaTest, JoinedAndPublishedLeasesCountToo) {
  const Tokens stored = Count(1, 48), mine = Count(100, 64);
  Store(stored);
  const Acquired lease = Acquire(stored);
  EXPECT_EQ(index_.Join(lease.lease, {}, kOther).value().answer.restorable_tokens, 48u);
  EXPECT_FALSE(index_.Join(lease.lease, {}, kOther).value().lease);
  const auto id = Reserve({mine, {}}, block::SessionId{3});
  PublishAll(id, reserved_.plan);
  const Acquired published = index_.LeasePublished(id, 0, 64, 1);
  EXPECT_EQ(published.answer.restorable_tokens, 16u);  // of all: four extents
  EXPECT_EQ(published.answer.shortened_by.back().reason, ShortenReason::kLeaseQuota);
}

// --- names ---

TEST_F(ExtendTest, ReservedNamesAreThoseUnderWhichThePagesAreFound) {
  const Tokens stored = Count(1, 40);
  Store(FirstOf(stored, 32));
  SpillAll();
  const auto id = Reserve({stored, {}});
  EvictAll();
  index_.DropSsdRange(0, ~uint64_t{0});  // both blocks are holes
  const Reserved reserved = reserved_;
  Reserve({stored, {}}, kOther);
  ASSERT_EQ(reserved_.names.size(), 3u);
  PublishAll(id, reserved_.plan);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(reserved_.names[i].hash, reserved_.hashes[i]);
    EXPECT_EQ(reserved.names[i].hash, reserved_.names[i].hash);
    const BlockName name = index_.Describe(Acquire(stored).pages[i].ref)->name;
    EXPECT_EQ(name.hash, reserved_.names[i].hash);
    EXPECT_EQ(name.parent, reserved_.names[i].parent);
  }
}

}  // namespace
}  // namespace prefixd::index
