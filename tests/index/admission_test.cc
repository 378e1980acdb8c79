// What a spilled block says of its past, for whoever decides what the SSD takes.
#include "index_fixture.h"

namespace prefixd::index {
namespace {

using AdmissionTest = IndexTest;

TEST_F(AdmissionTest, RequestsThatReadABlockAreCountedItsOwnWriterIsNot) {
  const Tokens read = Count(1, 16), unread = Count(100, 16);
  const block::ReservationId writing = Reserve({read, {}});
  PublishAll(writing, reserved_.plan);
  EXPECT_EQ(index_.LeasePublished(writing, 0, 16, block::kNoSlot).answer.restorable_tokens, 16u);
  EXPECT_TRUE(index_.CloseReservation(writing).ok());
  Store(unread);
  Match(read);  // takes hold of nothing
  Acquire(read, {}, kOther);
  Acquire(read, {}, kOther);
  EndSession(kMe);
  EndSession(kOther);
  const std::vector<SpillBlock> blocks = SpillAll();
  ASSERT_EQ(blocks.size(), 2u);
  for (const SpillBlock& block : blocks) {
    EXPECT_EQ(block.touches, block.tokens[0] == 1 ? 2u : 0u);
    EXPECT_FALSE(block.was_ghost);
  }
}

TEST_F(AdmissionTest, ABlockThatWasGivenUpShortlyBeforeSaysSo) {
  const Tokens stored = Count(1, 32);
  Store(stored);
  Acquire(stored);
  EndSession(kMe);
  EvictAll();
  Store(FirstOf(stored, 16));
  const std::vector<SpillBlock> blocks = SpillAll();
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_TRUE(blocks[0].was_ghost);
  EXPECT_EQ(blocks[0].touches, 0u);  // since it was stored again
}

TEST_F(AdmissionTest, AHealedHoleWasGivenUpToo) {
  const Tokens stored = Count(1, 32);
  Store(stored);
  const Acquired leaf = Acquire(stored);
  index_.EvictRange(leaf.pages[0].extent.offset, leaf.pages[0].extent.offset + 1, true);
  ASSERT_TRUE(index_.Release(leaf.lease).ok());
  index_.EvictRange(leaf.pages[0].extent.offset, leaf.pages[0].extent.offset + 1, true);
  ASSERT_EQ(Match(stored).restorable_tokens, 0u);  // the first block is a hole
  Store(stored);
  const std::vector<SpillBlock> blocks = SpillAll();
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_TRUE(blocks[0].was_ghost);
  EXPECT_FALSE(blocks[1].was_ghost);
}

class RefusedRungTest : public IndexTest {
 protected:
  RefusedRungTest() : IndexTest(16, {2}) {}
  Selection Rung(uint32_t rung) const { return {.groups = {}, .rungs = {uint64_t{1} << rung}}; }
  // The block's record is on SSD, with its page in rung 0; the page in rung 1 is in RAM alone.
  std::vector<BlockRef> StoreInBoth(const Tokens& tokens) {
    Store({tokens, {}}, Rung(0));
    SpillAll();
    Store({tokens, {}}, Rung(1));
    return index_.StoredBlocks(Reserve({tokens, {}}), 16).value();
  }
};

// Found by tests/sim: a commit that asked for the SSD was told that it is there.
TEST_F(RefusedRungTest, T6APageThatTheSsdRefusedIsNotOnSsd) {
  const std::vector<BlockRef> blocks = StoreInBoth(Count(1, 16));
  EXPECT_EQ(index_.AreOnSsd(blocks), PrefixIndex::OnDisk::kNotYet);
  index_.RefuseSpill(index_.PickSpill(~uint64_t{0}));
  EXPECT_EQ(index_.AreOnSsd(blocks), PrefixIndex::OnDisk::kNotYet);
  EXPECT_EQ(index_.PickSpillOf(blocks, ~uint64_t{0}).size(), 1u) << "it is written when asked for";
}

}  // namespace
}  // namespace prefixd::index
