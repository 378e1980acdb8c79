// What a block and a page cost, against what the index says of itself.
#include <malloc.h>

#include "index_fixture.h"

namespace prefixd::index {
namespace {

class MemoryTest : public IndexTest {
 protected:
  MemoryTest() : IndexTest(64, {1, 1}) {}
};

// 0 where the allocator does not count, under a sanitizer.
uint64_t AllocatedBytes() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

TEST_F(MemoryTest, AHundredThousandBlocksCostWhatTheIndexSays) {
  constexpr uint32_t kBlocks = 100'000, kPerSequence = 1000, kTokens = 64;
  Store(Count(1, kTokens));
  const uint64_t before = AllocatedBytes(), said_before = index_.Counts().memory_bytes;
  for (uint32_t i = 1; i <= kBlocks / kPerSequence; ++i) {
    const Tokens tokens = Count(i * 1'000'000, kPerSequence * kTokens);
    const block::ReservationId id = Reserve({tokens, {}});
    for (uint32_t b = 0; b < kPerSequence; ++b) {
      NewPage pages[2];
      for (uint32_t group = 0; group < 2; ++group) {
        pages[group] = {.group = group,
                        .rung = 0,
                        .extent = NewExtent(),
                        .check = 1,
                        .page_bytes = kPageBytes,
                        .payload_bytes = kPageBytes};
      }
      ASSERT_TRUE(index_.Publish(id, b, pages).ok());
    }
    ASSERT_TRUE(index_.CloseReservation(id).ok());
  }
  open_ = {};
  reserved_ = {};
  const uint64_t took = AllocatedBytes() - before;
  const uint64_t said = index_.Counts().memory_bytes - said_before;
  RecordProperty("bytes_a_block_said", static_cast<int>(said / kBlocks));
  RecordProperty("bytes_a_block_taken", static_cast<int>(took / kBlocks));
  // 64 token ids are 256 of these.
  EXPECT_LE(said / kBlocks, 1024u);
  if (AllocatedBytes() == 0) GTEST_SKIP() << "this allocator does not count";
  std::cout << "a block of 64 tokens with two pages: " << took / kBlocks << " bytes taken, "
            << said / kBlocks << " said\n";
  EXPECT_LE(took, said + said / 20);  // the budget is kept by what is said
  EXPECT_GE(took, said / 4 * 3);
}

}  // namespace
}  // namespace prefixd::index
