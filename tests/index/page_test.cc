// What the index says of a page, whatever became of it meanwhile.
#include "index_fixture.h"

namespace prefixd::index {
namespace {

constexpr uint32_t kBlockTokens = 16;

class PageTest : public IndexTest {
 protected:
  static constexpr uint32_t kBlocks = 10'000;

  PageTest() : IndexTest(kBlockTokens, {1, 1}) {}

  // No two pages have one size, nor one check.
  static NewPage Sized(NewPage page, uint32_t block) {
    page.page_bytes = 1 + 2 * block + page.group;
    page.payload_bytes = 100'000 - page.page_bytes;
    page.check = 7 * page.page_bytes;
    return page;
  }
  void StoreAll() {
    const block::ReservationId id = Reserve({tokens_, {}});
    for (uint32_t block = 0; block < kBlocks; ++block) {
      const std::vector<NewPage> pages = {Sized(MakePage(0), block), Sized(MakePage(1), block)};
      ASSERT_TRUE(index_.Publish(id, block, pages).ok());
    }
    ASSERT_TRUE(index_.CloseReservation(id).ok());
  }
  void ExpectAllAsStored(PageState state) {
    const Acquired all = Acquire(tokens_);
    ASSERT_EQ(all.pages.size(), 2u * kBlocks);
    for (const PageInfo& page : all.pages) {
      const NewPage stored = Sized({.group = page.ref.group}, page.first_token / kBlockTokens);
      ASSERT_EQ(page.state, state);
      ASSERT_EQ(page.page_bytes, stored.page_bytes);
      ASSERT_EQ(page.payload_bytes, stored.payload_bytes);
      ASSERT_EQ(page.check, stored.check);
    }
    ASSERT_TRUE(index_.Release(all.lease).ok());
  }
  void EvictClean() {
    while (index_.EvictOne(false)) index_.TakeFreed();
  }

  const Tokens tokens_ = Count(1, kBlocks* kBlockTokens);
};

// 20,000 sizes are more than a page has room for.
TEST_F(PageTest, KeepsItsSizesAndItsCheckInRamOnSsdAndWhileItIsHeld) {
  StoreAll();
  ExpectAllAsStored(PageState::kRam);
  SpillAll();
  ExpectAllAsStored(PageState::kRamAndSsd);
  EvictClean();
  ExpectAllAsStored(PageState::kSsd);
  ExpectAllAsStored(PageState::kSsd);
}

TEST_F(PageTest, KeepsItsPlaceOnSsdHoweverLargeTheSequence) {
  StoreAll();
  next_sequence_ = (uint64_t{1} << 36) - kBlocks / 2;
  const std::vector<SpillBlock> spilled = SpillAll();
  EXPECT_GT(next_sequence_, uint64_t{1} << 36);
  EvictClean();
  ExpectAllAsStored(PageState::kSsd);
  const Acquired all = Acquire(tokens_);
  uint64_t sequence = (uint64_t{1} << 36) - kBlocks / 2;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> want;  // by block and group
  for (const SpillBlock& block : spilled) {
    for (const PageInfo& page : block.pages) {
      want[{page.first_token / kBlockTokens, page.ref.group}] = ++sequence;
    }
    ++sequence;
  }
  for (const PageInfo& page : all.pages) {
    ASSERT_EQ(page.ssd_sequence, (want[{page.first_token / kBlockTokens, page.ref.group}]));
  }
  ASSERT_TRUE(index_.Release(all.lease).ok());
}

// Which were read back, and which were written again elsewhere.
TEST_F(PageTest, KeepsItsSizesFromARecordAndOverARewrite) {
  StoreAll();
  const std::vector<SpillBlock> spilled = SpillAll();
  index_.Clear(space_);
  for (const SpillBlock& block : spilled) {
    RestoredBlock record;
    record.hash = block.hash;
    record.parent = block.parent;
    record.serials = block.serials;
    record.tokens = block.tokens;
    record.record_sequence = block.record_sequence;
    for (const PageInfo& page : block.pages) {
      record.pages.push_back({.group = page.ref.group,
                              .rung = page.ref.rung,
                              .tokens = page.tokens,
                              .page_bytes = page.page_bytes,
                              .payload_bytes = page.payload_bytes,
                              .check = page.check,
                              .ssd_sequence = block.record_sequence - 2 + page.ref.group});
    }
    ASSERT_TRUE(index_.Restore(space_, record).ok());
  }
  ExpectAllAsStored(PageState::kSsd);
  const uint64_t last = next_sequence_;
  const std::vector<SpillBlock> again =
      index_.PickRewrite({.first = 1, .last = last, .hot_bytes = ~uint64_t{0}});
  std::vector<SpilledPage> pages;
  for (const SpillBlock& block : again) {
    for (const PageInfo& page : block.pages) {
      pages.push_back({page.ref, ++next_sequence_, page.ssd_sequence});
    }
  }
  EXPECT_EQ(pages.size(), 2u * kBlocks);
  index_.FinishSpill(again, pages);
  index_.DropSsdRange(1, last);
  ExpectAllAsStored(PageState::kSsd);
}

// A block whose record says one end gives it to a sibling and gets another from a third.
TEST_F(PageTest, AnEndThatCameAfterTheRecordIsWrittenThoughAnotherEndLeftMeanwhile) {
  const auto store = [&](const Tokens& tokens, uint32_t end) {
    const block::ReservationId id = Reserve({tokens, {}});
    PublishAll(id, reserved_.plan);
    ASSERT_TRUE(index_.AddEnd(id, end).ok());
    ASSERT_TRUE(index_.CloseReservation(id).ok());
    SpillAll();
  };
  const Tokens tokens = Count(100, kBlockTokens);
  const Tokens first = Join(FirstOf(tokens, 7), Tokens(9, 1));
  const Tokens second = Join(FirstOf(tokens, 12), Tokens(4, 1));
  store(tokens, 5);
  store(first, kBlockTokens);
  store(second, 10);
  EvictClean();
  const Acquired held[] = {Acquire(tokens), Acquire(first)};
  index_.TrimMemory(0);
  EXPECT_EQ(Summary().blocks, 2u);
  const std::vector<SpillBlock> again = SpillAll();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].tokens, tokens);
  EXPECT_EQ(again[0].ends, std::vector<uint32_t>{10});
  for (const Acquired& lease : held) ASSERT_TRUE(index_.Release(lease.lease).ok());
}

// Of a time when an opening of the store was worth 2^40 sequences.
TEST_F(PageTest, ARecordOfALargeSequenceGoesWithItsRangeAndIsWrittenAgain) {
  next_sequence_ = uint64_t{3} << 40;
  Store(FirstOf(tokens_, 2 * kBlockTokens));
  const uint64_t record = SpillAll().back().record_sequence;
  EvictClean();
  index_.DropSsdRange(1, uint64_t{3} << 40);
  EXPECT_TRUE(SpillAll().empty());
  index_.DropSsdRange(record, record);
  EXPECT_EQ(SpillAll().size(), 1u);
  EXPECT_EQ(Match(tokens_).restorable_tokens, 2 * kBlockTokens);
  index_.DropSsdRange(uint64_t{3} << 40, next_sequence_);
  EXPECT_EQ(Summary().blocks, 0u);
}

}  // namespace
}  // namespace prefixd::index
