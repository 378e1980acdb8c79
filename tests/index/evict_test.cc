// The order in which pages are given up, spilled, dropped and restored.
#include <gmock/gmock.h>

#include "index_fixture.h"

namespace prefixd::index {
namespace {

RestoredBlock RecordOf(const SpillBlock& block, uint64_t sequence) {
  RestoredBlock record{.hash = block.hash,
                       .parent = block.parent,
                       .serials = block.serials,
                       .other_serials = block.other_serials,
                       .tokens = block.tokens,
                       .content = block.content,
                       .ends = block.ends,
                       .pages = {},
                       .record_sequence = sequence + 1};
  record.pages.push_back({.group = 0,
                          .rung = 0,
                          .tokens = static_cast<uint32_t>(block.tokens.size()),
                          .page_bytes = 1000,
                          .payload_bytes = 900,
                          .check = 1,
                          .ssd_sequence = sequence});
  return record;
}

TEST_F(IndexTest, LeavesGoFirstAndTheLeastRecentlyUsedPathFirst) {
  const Tokens old_path = Count(1, 32), young_path = Count(100, 32);
  Store(old_path);
  Store(young_path);
  index_.EvictOne(true);
  EXPECT_EQ(Match(old_path).restorable_tokens, 16u);
  EndSession(kMe);
  Acquire(old_path);  // touches what is left of it
  EndSession(kMe);
  index_.EvictOne(true);
  EXPECT_EQ(Match(young_path).restorable_tokens, 16u);
  index_.EvictOne(true);
  EXPECT_EQ(Match(young_path).restorable_tokens, 0u);
  EXPECT_EQ(Match(old_path).restorable_tokens, 16u);
}

TEST_F(IndexTest, T4BlocksThatWereReadAgainOutliveAFloodOfNewOnes) {
  index_.SetLimits({.most_spared_bytes = block::kExtentUnit});
  const Tokens used = Count(1, 16);
  Store(used);
  ASSERT_TRUE(index_.Release(Acquire(used).lease).ok());
  for (uint32_t i = 0; i < 3; ++i) Store(Count(1000 * (i + 1), 16));  // a quarter is `used`
  for (uint32_t i = 3; i < 50; ++i) {
    Store(Count(1000 * (i + 1), 16));
    index_.EvictOne(true);
    ASSERT_EQ(Match(used).restorable_tokens, 16u) << i;
  }
  EXPECT_EQ(Match(Count(1000 * 47, 16)).restorable_tokens, 0u);
  EXPECT_EQ(Match(Count(1000 * 48, 16)).restorable_tokens, 16u) << "the flood goes by age";
}

TEST_F(IndexTest, T4BlocksThatWereReadAgainKeepTheirShareAndNotMore) {
  index_.SetLimits({.most_spared_bytes = 3 * block::kExtentUnit});
  const auto read_again = [](uint32_t i) { return Count(1000 * (i + 1), 16); };
  for (uint32_t i = 0; i < 6; ++i) {
    Store(read_again(i));
    ASSERT_TRUE(index_.Release(Acquire(read_again(i)).lease).ok());
  }
  for (uint32_t i = 0; i < 10; ++i) Store(Count(100'000 + 100 * i, 16));
  for (int i = 0; i < 3; ++i) index_.EvictOne(true);
  EXPECT_EQ(Match(read_again(2)).restorable_tokens, 0u);
  EXPECT_EQ(Match(read_again(3)).restorable_tokens, 16u);
  EXPECT_EQ(index_.Counts().spared_bytes, 3 * block::kExtentUnit);
  for (int i = 0; i < 10; ++i) index_.EvictOne(true);
  EXPECT_EQ(Match(Count(100'900, 16)).restorable_tokens, 0u);
  EXPECT_EQ(Match(read_again(3)).restorable_tokens, 16u);
  index_.EvictOne(true);  // nothing else is left
  EXPECT_EQ(Match(read_again(3)).restorable_tokens, 0u);
}

TEST_F(IndexTest, T4ASlabKnowsHowMuchOfItIsSpared) {
  constexpr uint64_t kSlab = 2 * block::kExtentUnit;  // extents stand at 1, 2, 3 units
  index_.SetLimits({.most_spared_bytes = block::kExtentUnit});
  for (uint32_t i = 1; i <= 3; ++i) Store(Count(100 * i, 16));
  EXPECT_THAT(index_.SparedBytes(kSlab), testing::IsEmpty());
  Acquire(Count(200, 16));
  EXPECT_THAT(index_.SparedBytes(kSlab), testing::ElementsAre(0, block::kExtentUnit));
  Acquire(Count(300, 16));  // more than is spared
  EXPECT_THAT(index_.SparedBytes(kSlab), testing::IsEmpty());
}

TEST_F(IndexTest, T4ASparedBlockStaysWhileADirtyOneThatIsNotHasToBeWritten) {
  index_.SetLimits({.most_spared_bytes = block::kExtentUnit});
  const Tokens used = Count(1, 16), dirty = Count(100, 16);
  Store(used);
  ASSERT_TRUE(index_.Release(Acquire(used).lease).ok());
  SpillAll();
  Store(dirty);
  EXPECT_FALSE(index_.EvictOne(false, PrefixIndex::GiveUp::kUnspared).has_value());
  EXPECT_EQ(Match(used).ram_bytes, kPageBytes);
  SpillAll();
  EXPECT_TRUE(index_.EvictOne(false, PrefixIndex::GiveUp::kUnspared).has_value());
  EXPECT_EQ(Match(used).ram_bytes, kPageBytes);
  EXPECT_TRUE(index_.EvictOne(false, PrefixIndex::GiveUp::kUnspared).has_value());
  EXPECT_EQ(Match(used).ram_bytes, 0u);
}

TEST_F(IndexTest, MatchDoesNotTouch) {
  Store(Count(1, 16));
  Store(Count(100, 16));
  Match(Count(1, 16));
  index_.EvictOne(true);
  EXPECT_EQ(Match(Count(1, 16)).restorable_tokens, 0u);
}

TEST_F(IndexTest, DirtyPagesAreDroppedOnlyWhenTheCallerSaysSo) {
  Store(Count(1, 32));
  EXPECT_FALSE(index_.EvictOne(false).has_value());
  SpillAll();
  EXPECT_EQ(index_.Counts().clean_bytes, 2 * block::kExtentUnit);
  const auto evicted = index_.EvictOne(false);
  ASSERT_TRUE(evicted.has_value());
  EXPECT_EQ(evicted->dropped_pages, 0u);
  EXPECT_EQ(Match(Count(1, 32)).restorable_tokens, 32u);
  EXPECT_EQ(Match(Count(1, 32)).ssd_bytes, kPageBytes);
}

TEST_F(IndexTest, ParentsAreSpilledBeforeChildrenAndColdestLeavesFirst) {
  const Tokens cold = Count(1, 48), warm = Count(100, 16);
  Store(cold);
  Store(warm);
  const std::vector<SpillBlock> picked = index_.PickSpill(3 * kPageBytes);
  ASSERT_EQ(picked.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(picked[i].first_token, 16 * i);
  EXPECT_EQ(picked[0].tokens[0], 1u);
  EXPECT_THAT(picked[2].ends, testing::ElementsAre(16));
  index_.AbortSpill(picked);
  EXPECT_EQ(index_.Counts().dirty_bytes, 4 * block::kExtentUnit);
  EXPECT_EQ(index_.PickSpill(1).size(), 1u);
  EXPECT_EQ(SpillAll().size(), 3u);
}

TEST_F(IndexTest, NoMoreIsPickedThanWasAskedForButOneBlock) {
  Store(Count(1, 48));
  Store(Count(100, 16));
  for (const uint64_t asked : {kPageBytes * 3 - 1, kPageBytes * 2, kPageBytes * 2 + 1}) {
    const std::vector<SpillBlock> picked = index_.PickSpill(asked);
    EXPECT_EQ(picked.size(), 2u) << asked;
    index_.AbortSpill(picked);
  }
  EXPECT_EQ(index_.PickSpill(kPageBytes - 1).size(), 1u);
}

TEST_F(IndexTest, SpillingPagesAreReadableAndNotGivenUp) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  const auto picked = index_.PickSpill(1);
  EvictAll();
  EXPECT_EQ(Acquire(stored).pages[0].state, PageState::kSpilling);
  EXPECT_TRUE(index_.PickSpill(1).empty());
  index_.AbortSpill(picked);
}

TEST_F(IndexTest, ABlockClearedWhileSpillingDoesNotComeBack) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  const auto picked = index_.PickSpill(1);
  index_.Clear(space_);
  EXPECT_TRUE(index_.TakeFreed().empty());  // the spiller is reading it
  const SpilledPage spilled{picked[0].pages[0].ref, 5};
  index_.FinishSpill(picked, {&spilled, 1});
  EXPECT_EQ(index_.TakeFreed().size(), 1u);
  EXPECT_EQ(Match(stored).matched_tokens, 0u);
  EXPECT_EQ(Summary().ssd_page_bytes, 0u);
}

TEST_F(IndexTest, ANewEndOfAWrittenBlockIsARecordOfItsOwn) {
  const Tokens stored = Count(1, 16);
  Store(stored);
  SpillAll();
  EXPECT_TRUE(index_.PickSpill(1).empty());
  Store(FirstOf(stored, 9));
  const auto again = SpillAll();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_TRUE(again[0].pages.empty());
  EXPECT_EQ(again[0].ssd_pages.size(), 1u);
  EXPECT_THAT(again[0].ends, testing::ElementsAre(9, 16));
}

TEST_F(IndexTest, DroppedCopiesAreGoneOrDirtyAgain) {
  const Tokens stored = Count(1, 32);
  Store(stored);
  SpillAll();
  index_.EvictOne(false);  // the second block lives on SSD only
  index_.DropSsdRange(1, next_sequence_);
  EXPECT_EQ(Match(stored).restorable_tokens, 16u);
  EXPECT_EQ(index_.Counts().dirty_bytes, block::kExtentUnit);
  EXPECT_EQ(Summary().ssd_page_bytes, 0u);
}

TEST_F(IndexTest, BlocksComeBackFromTheirRecords) {
  const Tokens stored = Count(1, 40);
  Store(stored);
  Store(FirstOf(stored, 35));
  const auto blocks = SpillAll();
  index_.Clear(space_);
  const auto record = [&](size_t i) { return RecordOf(blocks[i], 100 + 2 * i); };
  EXPECT_TRUE(absl::IsNotFound(index_.Restore(space_, record(1))));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(index_.Restore(space_, record(i)).ok());
  EXPECT_TRUE(index_.Restore(space_, record(2)).ok());  // twice is once
  EXPECT_EQ(Match(stored).restorable_tokens, 40u);
  EXPECT_EQ(Match(stored).kind, block::MatchKind::kExact);
  EXPECT_EQ(Match(FirstOf(stored, 35)).kind, block::MatchKind::kExact);
  EXPECT_EQ(Summary().ends, 2u);
  EXPECT_TRUE(SpillAll().empty());
}

TEST_F(IndexTest, RecordsWithoutPagesHoldThePlaceOnlyWhileSomethingContinuesThem) {
  const Tokens stored = Count(1, 40);
  Store(stored);
  const auto blocks = SpillAll();
  index_.Clear(space_);
  RestoredBlock first = RecordOf(blocks[0], 100), second = RecordOf(blocks[1], 102);
  first.pages.clear();
  second.pages.clear();
  EXPECT_TRUE(index_.Restore(space_, first).ok());
  EXPECT_TRUE(index_.Restore(space_, second).ok());
  EXPECT_TRUE(index_.Restore(space_, RecordOf(blocks[2], 104)).ok());
  index_.PruneHoles();
  EXPECT_EQ(Match(stored).matched_tokens, 40u);
  EXPECT_EQ(Match(stored).restorable_tokens, 0u);
  index_.Clear(space_);
  EXPECT_TRUE(index_.Restore(space_, first).ok());
  EXPECT_TRUE(index_.Restore(space_, second).ok());
  index_.PruneHoles();
  EXPECT_EQ(Match(stored).matched_tokens, 0u);
  EXPECT_EQ(Summary().holes, 0u);
}

TEST_F(IndexTest, T1ARecordIsAChildOfTheBlockWhoseSerialItNamesOrOfNone) {
  Store(Count(1, 40));
  const auto blocks = SpillAll();
  RestoredBlock stranger = RecordOf(blocks[1], 100);
  stranger.serials.parent += 1'000'000;
  EXPECT_TRUE(absl::IsNotFound(index_.Restore(space_, stranger)));
}

TEST_F(IndexTest, ARecordIsRefusedWhoseParentHasAnotherHash) {
  Store(Count(1, 40));
  const auto blocks = SpillAll();
  RestoredBlock stranger = RecordOf(blocks[1], 100);
  block::BlockHash parent = stranger.parent;
  parent.back() ^= std::byte{1};
  stranger.hash = block::BlockHasher().Hash(parent, {stranger.tokens, {}});
  EXPECT_TRUE(absl::IsDataLoss(index_.Restore(space_, stranger)));
}

// What an attacker's two blocks of one hash come to: the one that is there, the other's child.
TEST(OneHashTest, T1AChildNeverComesBackUnderAnotherBlockOfItsParentsHash) {
  PrefixIndex index({.hasher = block::BlockHasher({}, 0)});  // every block has the same hash
  const block::SpaceHandle space = index.AddSpace({.id = {}, .block_tokens = 16, .rungs = {1}});
  const auto restore = [&](const Tokens& tokens, uint64_t own, uint64_t parent, uint64_t sequence) {
    SpillBlock block;
    block.serials = {.own = own, .parent = parent};
    block.tokens = tokens;
    return index.Restore(space, RecordOf(block, sequence));
  };
  const Tokens first = Count(1, 16), second = Count(100, 16), child = Count(200, 16);
  const auto matched = [&](const Tokens& tokens) {
    return index.Match(space, {tokens, {}}, {}).matched_tokens;
  };
  index.BeginLoading();
  // The first one's own record is gone: its child's is met before and after the second's.
  EXPECT_TRUE(absl::IsNotFound(restore(child, 13, 11, 1)));
  EXPECT_TRUE(restore(second, 12, 0, 3).ok());
  EXPECT_TRUE(absl::IsNotFound(restore(child, 13, 11, 5)));
  EXPECT_EQ(matched(Join(second, child)), 16u);
  // Stored again by a worker meanwhile, and then its record is found.
  const auto reserved = index.Reserve(space, {Join(first, child), {}}, {}, {1}).value();
  const NewPage page{.extent = {0, 1 << 16}, .check = 1, .page_bytes = 10, .payload_bytes = 10};
  EXPECT_TRUE(index.Publish(reserved.plan.reservation, 0, std::vector{page}).ok());
  EXPECT_TRUE(absl::IsNotFound(restore(child, 13, 11, 7)));
  EXPECT_TRUE(restore(first, 11, 0, 9).ok());
  EXPECT_TRUE(restore(child, 13, 11, 11).ok());
  EXPECT_EQ(matched(Join(first, child)), 32u);
  EXPECT_EQ(matched(Join(second, child)), 16u);
  // One serial for two blocks: nothing decides between them, so the second is not taken.
  EXPECT_TRUE(absl::IsDataLoss(restore(Count(300, 16), 12, 0, 13)));
  EXPECT_TRUE(absl::IsDataLoss(restore(Count(300, 16), 0, 0, 15)));
  index.PruneHoles();
  EXPECT_TRUE(index.Validate().ok()) << index.Validate();
  // The record that is written of it next names both, as its children's do.
  std::vector<SpillBlock> spilled = index.PickSpill(1 << 20);
  ASSERT_FALSE(spilled.empty());
  EXPECT_EQ(spilled[0].tokens, first);
  EXPECT_EQ(spilled[0].other_serials, std::vector<uint64_t>{11});
  EXPECT_NE(spilled[0].serials.own, 11u);
  index.AbortSpill(spilled);
}

TEST_F(IndexTest, ARecordThatDoesNotFitItsHashIsDataLoss) {
  Store(Count(1, 16));
  const auto blocks = SpillAll();
  RestoredBlock record = RecordOf(blocks[0], 50);
  record.tokens[3] ^= 1;
  EXPECT_TRUE(absl::IsDataLoss(index_.Restore(space_, record)));
  record = RecordOf(blocks[0], 50);
  record.pages[0].rung = 1;
  EXPECT_TRUE(absl::IsDataLoss(index_.Restore(space_, record)));
  record = RecordOf(blocks[0], 50);
  record.ends = {17};
  EXPECT_TRUE(absl::IsDataLoss(index_.Restore(space_, record)));
}

TEST_F(IndexTest, TrimmingForgetsColdBlocksThatLiveOnSsdOnly) {
  const Tokens cold = Count(1, 32), warm = Count(100, 32);
  Store(cold);
  Store(warm);
  SpillAll();
  EvictAll();
  Acquire(warm);
  index_.TrimMemory(0);
  EXPECT_EQ(Match(cold).matched_tokens, 0u);
  EXPECT_EQ(Match(warm).restorable_tokens, 32u);
}

TEST_F(IndexTest, T4NothingThatWasUsedAfterADirtyBlockIsGivenUpInOrder) {
  const Tokens used = Count(1, 16), dirty = Count(100, 16);
  Store(used);
  SpillAll();
  Store(dirty);
  ASSERT_TRUE(index_.Release(Acquire(used).lease).ok());
  EXPECT_FALSE(index_.EvictOne(false, PrefixIndex::GiveUp::kInOrder).has_value());
  EXPECT_EQ(Match(used).ram_bytes, kPageBytes);
  SpillAll();
  EXPECT_TRUE(index_.EvictOne(false, PrefixIndex::GiveUp::kInOrder).has_value());
  EXPECT_EQ(Match(dirty).ram_bytes, 0u);
  EXPECT_EQ(Match(used).ram_bytes, kPageBytes);
}

TEST_F(IndexTest, T4TrimmingInOrderForgetsNothingThatWasUsedAfterWhatStandsInRam) {
  const Tokens used = Count(1, 32), cold = Count(100, 32), in_ram = Count(200, 32);
  Store(used);
  Store(cold);
  SpillAll();
  EvictAll();
  Store(in_ram);
  SpillAll();
  ASSERT_TRUE(index_.Release(Acquire(used).lease).ok());
  ASSERT_GT(Match(used).ssd_bytes, 0u);
  index_.TrimMemory(0, PrefixIndex::GiveUp::kInOrder);
  EXPECT_EQ(Match(cold).matched_tokens, 0u);
  EXPECT_EQ(Match(in_ram).restorable_tokens, 32u);
  EXPECT_EQ(Match(used).restorable_tokens, 32u);
  EvictAll();  // what stood in RAM is on SSD alone from here on, and colder
  index_.TrimMemory(index_.Counts().memory_bytes - 1, PrefixIndex::GiveUp::kInOrder);
  EXPECT_LT(Match(in_ram).restorable_tokens, 32u);
  EXPECT_EQ(Match(used).restorable_tokens, 32u);
}

}  // namespace
}  // namespace prefixd::index
