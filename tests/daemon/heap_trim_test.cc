// When prefixd gives free memory of its heaps back.
#include "daemon/heap_trim.h"

#include <gtest/gtest.h>

namespace prefixd::daemon {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kMiB = 1 << 20;

class HeapTrimTest : public ::testing::Test {
 protected:
  HeapTrimTest() { EXPECT_FALSE(IsDueAt(0, 0)); }
  // `free_mib`: beyond what the process has at the start.
  bool IsDueAt(int ms, uint64_t free_mib) { return trim_.IsDue(Use(free_mib), At(ms)); }
  void TrimmedAt(int ms, uint64_t free_mib = 0) { trim_.Trimmed(Use(free_mib), At(ms)); }
  milliseconds NextLook(int ms) const { return trim_.NextLook(At(ms)); }
  void Allocate(uint64_t mib) { allocated_ += mib * kMiB; }

 private:
  HeapUse Use(uint64_t free_mib) const {
    return {.resident_bytes = 30 * kMiB + allocated_ + free_mib * kMiB,
            .allocated_bytes = allocated_};
  }
  static HeapTrim::Time At(int ms) { return HeapTrim::Time(milliseconds(1'000'000 + ms)); }
  HeapTrim trim_;
  uint64_t allocated_ = 20 * kMiB;
};

TEST_F(HeapTrimTest, WhatAFloodLeavesIsGivenBackAtOnceAndLooksComeSooner) {
  EXPECT_EQ(NextLook(0), milliseconds(100));
  EXPECT_TRUE(IsDueAt(100, 17));
  TrimmedAt(100);
  EXPECT_EQ(NextLook(100), milliseconds(20));
  EXPECT_TRUE(IsDueAt(120, 40));
  TrimmedAt(120);
  EXPECT_EQ(NextLook(5000), milliseconds(20));
  EXPECT_EQ(NextLook(5200), milliseconds(100));
}

TEST_F(HeapTrimTest, WhatAStreamTakesAgainIsGivenBackOnceASecond) {
  EXPECT_TRUE(IsDueAt(100, 12));
  TrimmedAt(100);
  for (int ms = 200; ms < 1100; ms += 100) EXPECT_FALSE(IsDueAt(ms, 12)) << ms;
  EXPECT_TRUE(IsDueAt(1100, 12));
  EXPECT_EQ(NextLook(1100), milliseconds(100));
}

TEST_F(HeapTrimTest, WhatNoTrimGivesBackAsksForNoOther) {
  EXPECT_TRUE(IsDueAt(100, 50));
  TrimmedAt(100, 48);
  EXPECT_FALSE(IsDueAt(200, 48));
  EXPECT_FALSE(IsDueAt(5000, 52)) << "4 MiB are worth no trim";
  EXPECT_TRUE(IsDueAt(6000, 53));
}

TEST_F(HeapTrimTest, WhatIsAllocatedIsNotFree) {
  Allocate(200);
  EXPECT_FALSE(IsDueAt(1000, 0));
  EXPECT_TRUE(IsDueAt(1100, 17));
}

TEST_F(HeapTrimTest, MemoryThatWentByItselfCountsOnceItIsTakenAgain) {
  EXPECT_TRUE(IsDueAt(100, 50));
  TrimmedAt(100, 50);
  EXPECT_FALSE(IsDueAt(2000, 0));
  EXPECT_TRUE(IsDueAt(2100, 17));
}

TEST(HeapUseTest, AProcessHasAtLeastWhatItAllocated) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer's heap does not say what it has given out";
#endif
  const HeapUse use = HeapUseNow();
  EXPECT_GT(use.allocated_bytes, 0u);
  EXPECT_GT(use.resident_bytes, use.allocated_bytes / 2) << "of what was never written it has none";
}

}  // namespace
}  // namespace prefixd::daemon
