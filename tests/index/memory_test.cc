// What a block and a page cost, against what the index says of itself.
#include <malloc.h>

#include "index_fixture.h"

namespace prefixd::index {
namespace {

constexpr uint32_t kTokens = 64;

class MemoryTest : public IndexTest {
 protected:
  static constexpr uint32_t kBlocks = 100'000, kPerSequence = 1000;

  explicit MemoryTest(uint32_t groups = 2)
      : IndexTest(kTokens, std::vector<uint32_t>(groups, 1), {.max_ghosts = 0}), groups_(groups) {}

  // Of other tokens each time; without marks, which stand in the arena.
  void StoreSequence(uint32_t number, uint32_t blocks = kPerSequence, bool end = false) {
    const Tokens tokens = Count(number * 1'000'000, blocks * kTokens);
    const block::ReservationId id = Reserve({tokens, {}});
    for (uint32_t b = 0; b < blocks; ++b) {
      std::vector<NewPage> pages(groups_);
      for (uint32_t group = 0; group < groups_; ++group) {
        pages[group] = {.group = group,
                        .rung = 0,
                        .extent = NewExtent(),
                        .check = 1,
                        .page_bytes = kPageBytes,
                        .payload_bytes = kPageBytes};
      }
      ASSERT_TRUE(index_.Publish(id, b, pages).ok());
    }
    ASSERT_TRUE(!end || index_.AddEnd(id, blocks * kTokens).ok());
    ASSERT_TRUE(index_.CloseReservation(id).ok());
    open_ = {};
    reserved_ = {};
  }
  void StoreAll() {
    for (uint32_t i = 1; i <= kBlocks / kPerSequence; ++i) StoreSequence(i);
  }
  // What nobody holds goes to SSD.
  void LeaveRam() {
    SpillAll();
    while (index_.EvictOne(false)) index_.TakeFreed();
  }
  uint64_t Said() const { return index_.Counts().memory_bytes; }

  const uint32_t groups_;
};

// Blocks of so many pages.
class PagesTest : public MemoryTest, public testing::WithParamInterface<uint32_t> {
 protected:
  PagesTest() : MemoryTest(GetParam()) {}
};

// 0 where the allocator does not count, under a sanitizer.
uint64_t AllocatedBytes() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

// The budget is kept by what is said.
void ExpectSaidIsTaken(const char* what, uint64_t said, uint64_t took, uint64_t most) {
  EXPECT_LE(said / 100'000, most);
  if (AllocatedBytes() == 0) GTEST_SKIP() << "this allocator does not count";
  std::cout << what << ": " << took / 100'000 << " bytes taken, " << said / 100'000 << " said\n";
  EXPECT_LE(took, said + said / 50);
  EXPECT_GE(took, said - said / 50);
}

TEST_F(MemoryTest, AHundredThousandBlocksCostWhatTheIndexSays) {
  StoreSequence(1'000, 1);
  const uint64_t before = AllocatedBytes(), said_before = Said();
  StoreAll();
  const uint64_t took = AllocatedBytes() - before;
  // 64 token ids are 256 of these; of what stands in RAM besides, 48 a page.
  ExpectSaidIsTaken("a block of 64 tokens with two pages in RAM", Said() - said_before, took, 480);
}

TEST_F(MemoryTest, ABlockThatIsOnSsdOnlyCostsLessThanOneInRam) {
  StoreSequence(1'000, 1);
  const uint64_t before = AllocatedBytes(), said_before = Said();
  StoreAll();
  LeaveRam();
  EXPECT_EQ(Summary().ram_extent_bytes, 0u);
  const uint64_t took = AllocatedBytes() - before;
  ExpectSaidIsTaken("a block of 64 tokens with two pages on SSD", Said() - said_before, took, 384);
}

TEST_P(PagesTest, OnSsdABlockCostsAtMost96BytesAndSixteenAPageBesideItsTokens) {
  StoreSequence(100);
  const uint64_t before = Said();
  for (uint32_t i = 1; i <= 40; ++i) {  // wherever its tables stand in their growth
    StoreSequence(i);
    if (i < 10) continue;
    LeaveRam();
    ASSERT_LE(Said() - before, i * kPerSequence * (96 + 16 * groups_ + 4 * kTokens)) << i;
  }
}
// Of four blocks each, and their records on SSD say where they end.
TEST_P(PagesTest, SequencesThatEndCostTheirEntryAmongTheChildrenOfTheRootBesides) {
  StoreSequence(100, kPerSequence);
  const uint64_t before = Said();
  constexpr uint32_t kSequences = 1000;
  for (uint32_t i = 1; i <= kSequences; ++i) StoreSequence(1000 + i, 4, /*end=*/true);
  LeaveRam();
  EXPECT_EQ(Summary().ends, kSequences);
  EXPECT_LE(Said() - before, 4 * kSequences * (96 + 16 * groups_ + 4 * kTokens) + 12 * kSequences);
}
INSTANTIATE_TEST_SUITE_P(Groups, PagesTest, testing::Values(1, 2, 27, 64));

TEST_F(MemoryTest, WhatIsForgottenIsGivenBack) {
  StoreSequence(1'000);
  const uint64_t before = Said();
  for (uint32_t i = 1; i <= 20; ++i) StoreSequence(i);
  LeaveRam();
  EXPECT_GT(Said(), 10 * before);
  const uint64_t full = Said();
  index_.TrimMemory(full / 4);
  EXPECT_LE(Said(), full / 4);
  EXPECT_GT(Summary().blocks, 4000u);  // no more than that asks for
  index_.TrimMemory(0);
  EXPECT_LT(Said(), 16'000u);  // tables included
}

TEST_F(MemoryTest, SiblingsThatAreForgottenLeaveNothingBehind) {
  const auto store_and_forget = [&] {
    for (block::Token first = 0; first < 1000; ++first) {
      Store(Join(Tokens(kTokens, first), Count(0, kTokens)));
      Store(Join(Tokens(kTokens, first), Count(1, kTokens)));
    }
    LeaveRam();
    index_.TrimMemory(0);
    EXPECT_EQ(Summary().blocks, 0u);
    open_ = {};
    marks_.clear();
    return Said();
  };
  const uint64_t first = store_and_forget();
  for (uint32_t round = 0; round < 3; ++round) EXPECT_EQ(store_and_forget(), first);
}

TEST_F(MemoryTest, AReferenceToAForgottenBlockFindsNothingWhateverStandsThereNow) {
  const Tokens tokens = Count(1'000'000, 300 * kTokens);
  StoreSequence(1, 300);
  const Acquired all = Acquire(tokens);
  ASSERT_EQ(all.pages.size(), 600u);
  // What stays keeps the memory of its neighbours from being given back.
  const Acquired first = Acquire(FirstOf(tokens, 10 * kTokens));
  ASSERT_TRUE(index_.Release(all.lease).ok());
  LeaveRam();
  index_.TrimMemory(0);
  EXPECT_EQ(Summary().blocks, 10u);
  for (uint32_t round = 0; round < 2; ++round) {
    for (const PageInfo& page : all.pages) {
      if (page.first_token < 10 * kTokens) continue;
      EXPECT_FALSE(index_.Describe(page.ref).has_value());
      EXPECT_FALSE(index_.BeginPromotion(page.ref));
    }
    StoreSequence(2, 300);
  }
  ASSERT_TRUE(index_.Release(first.lease).ok());
}

TEST_F(MemoryTest, WhatIsHeldIsCountedAndWhatIsLetGoIsNot) {
  StoreSequence(1);
  LeaveRam();
  const uint64_t before = Said();
  const Acquired held = Acquire(Count(1'000'000, kPerSequence * kTokens));
  ASSERT_EQ(held.pages.size(), 2u * kPerSequence);
  EXPECT_GE(Said(), before + 2 * kPerSequence * 48);
  ASSERT_TRUE(index_.Validate().ok()) << index_.Validate();
  ASSERT_TRUE(index_.Release(held.lease).ok());
  EXPECT_EQ(Said(), before);
}

}  // namespace
}  // namespace prefixd::index
