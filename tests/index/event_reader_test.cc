// One listener: when a snapshot is whole, what it does after it fell behind.
#include "index/event_reader.h"

#include "tests/index/index_fixture.h"

namespace prefixd::index {
namespace {

class EventReaderTest : public IndexTest {
 protected:
  static constexpr uint32_t kKept = 16;
  EventReaderTest() : IndexTest(16, {1}, {.max_events = kKept}) {}

  void StoreBlocks(block::Token first, uint32_t blocks) { Store(Count(first, 16 * blocks)); }
};

TEST_F(EventReaderTest, ASnapshotIsNotWholeBeforeTheEventsUpToItsLastPieceAreTold) {
  StoreBlocks(100, 3);
  EventReader reader(&index_, {.space = {}, .after = {}}, 2);
  block::EventBatch batch = reader.Next();
  EXPECT_TRUE(batch.snapshot_begins);
  EXPECT_EQ(batch.blocks.size(), 2u);
  EXPECT_FALSE(batch.whole);
  StoreBlocks(1000, 6);
  batch = reader.Next();  // the last piece, which is read when six events are there
  EXPECT_EQ(batch.blocks.size(), 1u);
  EXPECT_EQ(batch.events.size(), 2u);
  EXPECT_FALSE(batch.whole);
  EXPECT_FALSE(reader.Next().whole);
  batch = reader.Next();
  EXPECT_TRUE(batch.whole);
  EXPECT_EQ(batch.sequence, 6u);
  EXPECT_FALSE(reader.HasNext());
}

TEST_F(EventReaderTest, WhoFallsBehindTheLogIsSentANewSnapshotWithoutAGapInItsEvents) {
  EventReader reader(&index_, {.space = {}, .after = {}}, 4);
  EXPECT_TRUE(reader.Next().whole);
  StoreBlocks(100, 3);
  block::EventBatch batch = reader.Next();
  EXPECT_EQ(batch.sequence, 3u);
  EXPECT_EQ(batch.events.size(), 3u);
  StoreBlocks(1000, kKept + 1);
  batch = reader.Next();
  EXPECT_TRUE(batch.snapshot_begins);
  EXPECT_EQ(batch.sequence, 3u + kKept + 1);
  EXPECT_TRUE(batch.events.empty());
  size_t blocks = batch.blocks.size();
  while (!batch.whole) blocks += (batch = reader.Next()).blocks.size();
  EXPECT_EQ(blocks, 3u + kKept + 1);
}

TEST_F(EventReaderTest, NothingIsNotedBeforeSomebodyListens) {
  StoreBlocks(100, 3);
  EXPECT_EQ(index_.LastEvent(), 0u);
  EXPECT_FALSE(index_.HasEventsAfter(0));
  EventReader reader(&index_, {.space = {}, .after = {}});
  StoreBlocks(1000, 2);
  EXPECT_EQ(index_.LastEvent(), 2u);
}

TEST_F(EventReaderTest, OneThatNamesASequenceThatNeverWasBeginsAnew) {
  EventReader first(&index_, {.space = {}, .after = {}});
  StoreBlocks(100, 3);
  EventReader on(&index_, {.space = {}, .after = 1});
  const block::EventBatch batch = on.Next();
  EXPECT_FALSE(batch.snapshot_begins);
  EXPECT_EQ(batch.events.size(), 2u);
  EventReader beyond(&index_, {.space = {}, .after = 4});
  EXPECT_TRUE(beyond.Next().snapshot_begins);
}

}  // namespace
}  // namespace prefixd::index
