// What leases hold: as pages or as a table, for a reader or for the writer, within the quotas.
#include <gmock/gmock.h>

#include "index_fixture.h"

namespace prefixd::index {
namespace {

using block::ShortenReason;
using testing::ElementsAre;

class LeasedPagesTest : public IndexTest {
 protected:
  using IndexTest::IndexTest;
  static std::vector<uint32_t> StartsOf(const std::vector<PageInfo>& pages) {
    std::vector<uint32_t> starts;
    for (const PageInfo& page : pages) starts.push_back(page.first_token);
    return starts;
  }
};

TEST_F(LeasedPagesTest, ItsPagesAreListedAsTheyAreNowCutToTheTokens) {
  const Tokens stored = Count(1, 48);
  Store(stored);
  SpillAll();
  EvictAll();
  const Acquired lease = Acquire(FirstOf(stored, 40));
  const std::vector<PageInfo> cut = index_.LeasedPages(lease.lease, {}, 20).value();
  EXPECT_THAT(StartsOf(cut), ElementsAre(0, 16));
  EXPECT_EQ(cut[1].tokens, 4u);
  EXPECT_EQ(index_.LeasedPages(lease.lease, {}, 40).value()[2].tokens, 8u);
  ASSERT_TRUE(index_.BeginPromotion(lease.pages[1].ref));
  index_.FailPromotion(lease.pages[1].ref, PrefixIndex::PromotionFailure::kCorrupt);
  const std::vector<PageInfo> pages = index_.LeasedPages(lease.lease, {}, 40).value();
  ASSERT_EQ(pages.size(), 3u);
  EXPECT_EQ(pages[0].state, PageState::kSsd);
  EXPECT_EQ(pages[1].state, PageState::kGone);
  EXPECT_TRUE(index_.Release(lease.lease).ok());
  EXPECT_TRUE(absl::IsNotFound(index_.LeasedPages(lease.lease, {}, 40).status()));
}

TEST_F(LeasedPagesTest, APartialBlockThatWasSupersededIsHeldUntilTheLeaseEnds) {
  const Tokens stored = Count(1, 40);
  Store(FirstOf(stored, 20));
  const Acquired lease = Acquire(FirstOf(stored, 20));
  Store(stored);  // supersedes the tail
  EXPECT_TRUE(index_.TakeFreed().empty());
  EXPECT_THAT(StartsOf(Acquire(stored).pages), ElementsAre(0, 16, 32));
  EXPECT_TRUE(index_.Release(lease.lease).ok());
  EXPECT_THAT(index_.TakeFreed(), ElementsAre(lease.pages[1].extent));
}

class TwoGroupTest : public LeasedPagesTest {
 protected:
  TwoGroupTest() : LeasedPagesTest(16, {1, 2}) {}
};

TEST_F(TwoGroupTest, PagesAreListedGroupByGroupOfTheGroupsThatWereAskedFor) {
  const Tokens stored = Count(1, 32);
  Store(stored);
  const Acquired lease = Acquire(stored);
  const std::vector<PageInfo> all = index_.LeasedPages(lease.lease, {}, 32).value();
  ASSERT_EQ(all.size(), lease.pages.size());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].ref, lease.pages[i].ref);
  const std::vector<PageInfo> second = index_.LeasedPages(lease.lease, {1}, 32).value();
  EXPECT_THAT(StartsOf(second), ElementsAre(0, 16));
  for (const PageInfo& page : second) EXPECT_EQ(page.ref.group, 1u);
  const Acquired one = Acquire(stored, {.selection = {.groups = {1}, .rungs = {}}});
  EXPECT_TRUE(absl::IsInvalidArgument(index_.LeasedPages(one.lease, {0}, 32).status()));
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
  EXPECT_EQ(table.last_page_tokens, 8u);
  ASSERT_EQ(table.offsets.size(), listed.pages.size());
  for (size_t i = 0; i < listed.pages.size(); ++i) {
    EXPECT_EQ(table.offsets[i], listed.pages[i].extent.offset) << i;
    EXPECT_EQ(MarksOf(listed.pages[i].extent).ReadHolders(), 8u) << i;
  }
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

TEST_F(LeasedPagesTest, AWriterGetsALeaseOnWhatItPublished) {
  const Tokens stored = Count(1, 40);
  Store(FirstOf(stored, 16));
  const auto id = Reserve({stored, {}});
  PublishAll(id, reserved_.plan);
  const Acquired acquired = index_.LeasePublished(id, 16, 40, 3);
  EXPECT_EQ(acquired.answer.restorable_tokens, 40u);
  EXPECT_THAT(StartsOf(acquired.pages), ElementsAre(16, 32));
  EXPECT_EQ(acquired.pages[1].tokens, 8u);
  EXPECT_EQ(MarksOf(acquired.pages[0].extent).ReadHolders(), 8u);
  EXPECT_EQ(index_.ListLeases()[0].session, kMe);
  const Acquired middle = index_.LeasePublished(id, 17, 32, 3);
  EXPECT_FALSE(middle.lease);
  EXPECT_EQ(middle.answer.restorable_tokens, 0u);
  EXPECT_EQ(index_.LeasePublished(id, 0, 40, 3).pages.size(), 3u);
}

TEST_F(LeasedPagesTest, APublishedLeaseEndsBeforeWhatIsNotStoredOrNotInRam) {
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

class SmallQuotaTest : public LeasedPagesTest {
 protected:
  SmallQuotaTest()
      : LeasedPagesTest(16, {1},
                        {.limits = {.session_lease_bytes = 3 * block::kExtentUnit,
                                    .total_lease_bytes = 4 * block::kExtentUnit}}) {}
};

TEST_F(SmallQuotaTest, PublishedLeasesCountToo) {
  const Tokens stored = Count(1, 48), mine = Count(100, 64);
  Store(stored);
  EXPECT_EQ(Acquire(stored).answer.restorable_tokens, 48u);
  const auto id = Reserve({mine, {}}, block::SessionId{3});
  PublishAll(id, reserved_.plan);
  const Acquired published = index_.LeasePublished(id, 0, 64, 1);
  EXPECT_EQ(published.answer.restorable_tokens, 16u);  // of all: four extents
  EXPECT_EQ(published.answer.shortened_by.back().reason, ShortenReason::kLeaseQuota);
}

// --- names ---

TEST_F(LeasedPagesTest, ReservedNamesAreThoseUnderWhichThePagesAreFound) {
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
