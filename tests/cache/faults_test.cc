// A disk that fails under the cache: serving goes on from RAM, it is said, and the disk is used
// again once it works.
#include <future>

#include "tests/cache/fixture.h"
#include "tests/support/fault_files.h"

namespace prefixd::testing {
namespace {

class FaultsTest : public CacheTest {
 protected:
  cache::Options OnDisk() {
    cache::Options options = WithSsd(uint64_t{32} << 20);
    options.segment_bytes = uint64_t{2} << 20;
    options.ssd_files = FilesOn(disk_);
    return options;
  }
  void StoreSome(block::SpaceHandle space, uint64_t first, uint64_t count) {
    for (uint64_t i = first; i < first + count; ++i) {
      const Tokens tokens = RandomTokens(i, 1000);
      auto stored = Store(identity_, space, tokens);
      ASSERT_TRUE(stored.ok()) << stored.status();
      EXPECT_EQ(ReadBack(identity_, space, tokens), 1000u);
    }
  }

  const block::SpaceIdentity identity_ = SmallIdentity(64, 16);
  const DiskPtr disk_ = std::make_shared<FaultDisk>(7);
};

// ENOSPC and EIO: what is on the disk stays readable, what is stored meanwhile is served from RAM.
TEST_F(FaultsTest, AFullOrBrokenDiskStopsNobodyAndIsUsedAgain) {
  for (int error : {ENOSPC, EIO}) {
    cache::Options options = OnDisk();
    options.directory = dir_.path() + "/ssd" + std::to_string(error);
    Open(options);
    const auto space = OpenSpace(identity_);
    StoreSome(space, 0, 5);
    ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    if (error == ENOSPC) disk_->SetFreeBytes(uint64_t{5} << 20);
    if (error == EIO) disk_->FailWrites(error, 20, ~uint64_t{0});
    StoreSome(space, 10, 40);
    EXPECT_GT(Counter("ssd.write_errors"), 0u);
    EXPECT_EQ(Counter("ssd.failing"), 1u);
    for (uint64_t i = 0; i < 5; ++i)
      EXPECT_EQ(ReadBack(identity_, space, RandomTokens(i, 1000)), 1000u);
    disk_->SetFreeBytes(std::nullopt);
    disk_->FailWrites(0);
    EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    EXPECT_EQ(Counter("ssd.failing"), 0u);
    StoreSome(space, 50, 5);
    ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    Open(options);
    for (uint64_t i : {0, 4, 50, 54})
      EXPECT_EQ(ReadBack(identity_, OpenSpace(identity_), RandomTokens(i, 1000)), 1000u) << i;
  }
}

// With the budget full, room for a segment is made by removing the oldest one.
TEST_F(FaultsTest, AFlushEndsAlsoWhereNoFileCanBeRemoved) {
  cache::Options options = OnDisk();
  options.ssd_budget_bytes = uint64_t{24} << 20;
  Open(options);
  const auto space = OpenSpace(identity_);
  uint64_t stored = 0;
  for (; Counter("segments.dropped") == 0; stored += 4) {
    ASSERT_LT(stored, 400u);
    StoreSome(space, stored, 4);
    cache_->Flush(In(20000));
  }
  disk_->CutAfter(0);
  StoreSome(space, stored, 4);
  auto flushed = std::async(std::launch::async, [&] { return cache_->Flush(In(1000)); });
  EXPECT_EQ(flushed.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  disk_->CutAfter(uint64_t{1} << 40);  // whatever it waits for comes now
  EXPECT_GT(flushed.get().dirty_bytes, 0u);
}

TEST_F(FaultsTest, AnSsdBudgetThatShrinksSaysSoWhereNoFileCanBeRemoved) {
  Open(OnDisk());
  const auto space = OpenSpace(identity_);
  for (uint64_t stored = 0; cache_->GetStats().ssd_file_bytes < uint64_t{8} << 20; stored += 4) {
    ASSERT_LT(stored, 400u);
    StoreSome(space, stored, 4);
    cache_->Flush(In(20000));
  }
  disk_->CutAfter(0);
  auto smaller =
      std::async(std::launch::async, [&] { return cache_->SetBudgets(0, uint64_t{4} << 20); });
  EXPECT_EQ(smaller.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  disk_->CutAfter(uint64_t{1} << 40);  // whatever it waits for comes now
  EXPECT_TRUE(absl::IsUnavailable(smaller.get().status()));
}

TEST_F(FaultsTest, APageThatCannotBeReadShortensTheMatchAndIsNotLost) {
  Open(OnDisk());
  const Tokens tokens = RandomTokens(1, 640);
  ASSERT_TRUE(Store(identity_, OpenSpace(identity_), tokens).ok());
  ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  Open(OnDisk());
  const auto space = OpenSpace(identity_);
  disk_->FailReads(1);
  EXPECT_EQ(ReadBack(identity_, space, tokens), 0u);
  EXPECT_GT(Counter("ssd.read_errors"), 0u);
  EXPECT_GT(Counter("shortened.io_error"), 0u);
  EXPECT_EQ(Counter("check_failures"), 0u);
  disk_->FailReads(0);
  // Reads that were queued for the first request may still fail under the next.
  uint32_t seen = 0;
  const base::Deadline end = In(20000);
  while (seen != 640 && std::chrono::steady_clock::now() < end) {
    seen = ReadBack(identity_, space, tokens);
  }
  EXPECT_EQ(seen, 640u);
}

// Bad pages are found once: not matched again, not read again, stored again by who computes them.
TEST_F(FaultsTest, ABadPageIsReadOnceAndStoredAgain) {
  Open(OnDisk());
  const Tokens tokens = RandomTokens(1, 640);
  ASSERT_TRUE(Store(identity_, OpenSpace(identity_), tokens).ok());
  ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  Open(OnDisk());
  const auto space = OpenSpace(identity_);
  disk_->CorruptReads(1);
  EXPECT_EQ(ReadBack(identity_, space, tokens), 0u);
  disk_->CorruptReads(0);
  EXPECT_GT(Counter("check_failures"), 0u);
  const auto match = Acquire(space, tokens).match;
  EXPECT_EQ(match.restorable_tokens, 0u);
  // What a queued read finds bad later is missing once more.
  uint32_t seen = 0;
  const base::Deadline end = In(20000);
  while (seen != 640 && std::chrono::steady_clock::now() < end) {
    ASSERT_TRUE(Store(identity_, space, tokens).ok());
    seen = ReadBack(identity_, space, tokens);
  }
  EXPECT_EQ(seen, 640u);
  ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  EXPECT_LE(Counter("check_failures"), 640 / 64 * identity_.groups.size());
  Open(OnDisk());
  EXPECT_EQ(ReadBack(identity_, OpenSpace(identity_), tokens), 640u);
}

TEST_F(FaultsTest, ASlowDiskDelaysNoCommit) {
  Open(OnDisk());
  const auto space = OpenSpace(identity_);
  disk_->Slow(std::chrono::milliseconds(1));
  StoreSome(space, 0, 40);  // more than RAM holds
  EXPECT_EQ(Counter("ssd.write_errors"), 0u);
  disk_->Slow(std::chrono::milliseconds(0));
  for (uint64_t i = 0; i < 40; ++i)
    EXPECT_EQ(ReadBack(identity_, space, RandomTokens(i, 1000)), 1000u);
}

}  // namespace
}  // namespace prefixd::testing
