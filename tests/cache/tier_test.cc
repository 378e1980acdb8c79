// T6: a start ends in service whatever the SSD tier's disk or metadata is like, and what was
// cleared stays cleared.
#include <gmock/gmock.h>
#include <sys/types.h>
#include <unistd.h>

#include <fstream>

#include "ssd/segment_store.h"
#include "tests/cache/shared_fixture.h"
#include "tests/support/fault_files.h"

namespace prefixd::testing {
namespace {

using ::testing::HasSubstr;

class TierTest : public SharedCacheTest {
 protected:
  cache::Options OnDisk() {
    cache::Options options = SharedWithSsd();
    options.segment_bytes = uint64_t{1} << 20;
    options.ssd_retry = std::chrono::milliseconds(5);
    options.ssd_files = FilesOn(disk_);
    return options;
  }
  void StoreOnSsd(uint64_t first, uint64_t count) {
    const auto space = OpenSpace(identity_);
    for (uint64_t i = first; i < first + count; ++i) {
      ASSERT_TRUE(Store(identity_, space, Sequence(i)).ok());
    }
    ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  }
  uint32_t Hits(uint64_t first, uint64_t count) {
    uint32_t hits = 0;
    for (uint64_t i = first; i < first + count; ++i) {
      hits += ReadBack(identity_, OpenSpace(identity_), Sequence(i));
    }
    return hits;
  }
  static Tokens Sequence(uint64_t i) { return RandomTokens(i, 300); }
  bool Reaches(const std::string& counter, uint64_t value) {
    return Until([&] { return Counter(counter) == value; });
  }
  void ForgetArena() {
    cache_.reset();
    std::filesystem::remove(arena_path_);
  }
  std::string Directory() const { return dir_.path() + "/ssd"; }
  template <typename Do>
  void ForFiles(const std::string& ending, Do action) {
    for (const auto& entry : std::filesystem::directory_iterator(Directory())) {
      if (entry.path().string().ends_with(ending)) action(entry.path().string());
    }
  }
  static void FlipIn(const std::string& path, size_t byte) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(byte));
    const char old = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(byte));
    file.put(static_cast<char>(old ^ 8));
  }

  const block::SpaceIdentity identity_ = SmallIdentity();
  const block::SpaceId id_ = block::IdOf(identity_);
  const DiskPtr disk_ = std::make_shared<FaultDisk>(11);
};

TEST_F(TierTest, T6ADiskThatTakesNothingAtTheStartIsServedAroundAndOpenedLater) {
  for (const int error : {EROFS, ENOSPC, EIO}) {
    disk_->FailWrites(0);
    ForgetArena();
    cache_.reset();  // it writes there
    std::filesystem::remove_all(Directory());
    Open(OnDisk());
    StoreOnSsd(0, 4);
    ForgetArena();
    disk_->FailWrites(error);
    Open(OnDisk());
    EXPECT_EQ(Counter("ssd.closed"), 1u);
    EXPECT_TRUE(Until([&] { return Counter("ssd.open_failed") >= 3; })) << "it is tried again";
    EXPECT_EQ(Hits(0, 4), 0u);
    const auto space = OpenSpace(identity_);
    for (uint64_t i = 2; i < 8; ++i) ASSERT_TRUE(Store(identity_, space, Sequence(i)).ok());
    EXPECT_EQ(Hits(2, 6), 6 * 300u) << "from RAM";
    EXPECT_GT(cache_->Flush(In(200)).dirty_bytes, 0u);
    disk_->FailWrites(0);
    ASSERT_TRUE(Reaches("ssd.opened_late", 1));
    EXPECT_EQ(Counter("ssd.closed"), 0u);
    EXPECT_EQ(Hits(0, 8), 8 * 300u) << "what was on SSD and what was stored meanwhile";
    EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    ForgetArena();
    Open(OnDisk());
    EXPECT_EQ(Hits(0, 8), 8 * 300u) << "all of it is on SSD";
  }
}

TEST_F(TierTest, T6ManyLivesWithADiskThatComesLateServeRightBytes) {
  for (int life = 0; life < 6; ++life) {
    disk_->FailWrites(life % 2 == 1 ? ENOSPC : 0);
    Open(OnDisk());
    const auto space = OpenSpace(identity_);
    for (uint64_t i = 0; i < 30; ++i) {
      if (i == 10) disk_->FailWrites(0);
      const Tokens tokens = RandomTokens(i / 3, 200 + 40 * (i % 3));
      ASSERT_TRUE(Store(identity_, space, tokens).ok());
      EXPECT_EQ(ReadBack(identity_, space, tokens), tokens.size());
    }
    ASSERT_TRUE(Reaches("ssd.closed", 0));
    EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  }
  ForgetArena();
  Open(OnDisk());
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(ReadBack(identity_, OpenSpace(identity_), RandomTokens(i, 280)), 280u);
  }
}

TEST_F(TierTest, T6WhatNoTimeMendsIsStillRefused) {
  Open(OnDisk());
  const auto refused = [](const cache::Options& options) {
    return cache::Cache::Open(options).status();
  };
  cache::Options second = OnDisk();
  second.arena_path.clear();
  second.directory = Directory();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused(second))) << "another daemon has it";
  std::filesystem::create_directory(dir_.path() + "/foreign");
  std::ofstream(dir_.path() + "/foreign/file") << "precious";
  second.directory = dir_.path() + "/foreign";
  EXPECT_TRUE(absl::IsFailedPrecondition(refused(second))) << "somebody else's";
}

// A prefixd that once ran as root leaves such files.
TEST_F(TierTest, T6AStoreWithAKeyOfAnotherUserIsRefusedAndSaysWhose) {
  Open(OnDisk());
  cache_.reset();
  if (chown((Directory() + "/prefixd.key").c_str(), 12345, 12345) != 0) {
    GTEST_SKIP() << "only root can give a file away, and only to users that its namespace has";
  }
  cache::Options options = OnDisk();
  options.directory = Directory();
  const absl::Status refused = cache::Cache::Open(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("holds prefixd.key, which belongs to user 12345, this is 0: run "
                        "prefixd as that user, or chown -R the directory"));
}

TEST_F(TierTest, ABudgetOfAClosedTierIsRefusedAsThat) {
  disk_->FailWrites(ENOSPC);
  Open(OnDisk());
  ASSERT_EQ(Counter("ssd.closed"), 1u);
  const absl::Status refused = cache_->SetBudgets(0, uint64_t{64} << 20).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("the SSD tier is closed and is tried again"));
}

TEST_F(TierTest, T6AStoreWithDamagedMetadataIsMovedAsideAndTheArenaIsServed) {
  for (const char* const name : {"MANIFEST", "CURRENT"}) {
    const uint64_t aside = std::string(name) == "CURRENT" ? 2 : 1;
    LiveAndBeKilled(OnDisk(), [&] {
      StoreOnSsd(0, 4);
      return std::string();
    });
    for (const auto& entry : std::filesystem::directory_iterator(Directory())) {
      if (entry.path().filename().string().starts_with(name)) FlipIn(entry.path(), 9);
    }
    Open(OnDisk());
    EXPECT_EQ(Counter("ssd.moved_aside"), 1u);
    EXPECT_EQ(Counter("ssd.damaged_copies"), aside);
    EXPECT_GT(Counter("ssd.damaged_bytes"), 0u);
    EXPECT_EQ(Hits(0, 4), 4 * 300u) << "what the arena holds";
    EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    ForgetArena();
    Open(OnDisk());
    EXPECT_EQ(Counter("ssd.moved_aside"), 0u);
    EXPECT_EQ(Hits(0, 4), 4 * 300u) << "on the new store by now";
  }
}

TEST_F(TierTest, T6ADamagedCopyGivesWayToWhatTheBudgetHasRoomFor) {
  cache::Options options = OnDisk();
  options.ssd_budget_bytes = uint64_t{8} << 20;
  Open(options);
  StoreOnSsd(0, 12);
  cache_.reset();
  std::ofstream(Directory() + "/CURRENT", std::ios::trunc) << "";
  Open(options);
  ASSERT_EQ(Counter("ssd.damaged_copies"), 1u);
  for (uint64_t i = 100; Counter("ssd.damaged_copies") > 0; i += 4) {
    ASSERT_LT(i, 1000u);
    StoreOnSsd(i, 4);
    EXPECT_LE(cache_->GetStats().ssd_file_bytes, options.ssd_budget_bytes);
  }
  EXPECT_EQ(Counter("ssd.damaged_removed"), 1u);
}

TEST_F(TierTest, T6APurgeRemovesDamagedCopiesToo) {
  Open(OnDisk());
  StoreOnSsd(0, 4);
  cache_.reset();
  std::ofstream(Directory() + "/CURRENT", std::ios::trunc) << "";
  Open(OnDisk());
  OpenSpace(identity_);
  ASSERT_EQ(Counter("ssd.damaged_copies"), 1u);
  ASSERT_TRUE(cache_->Purge(&id_, 0).ok());
  EXPECT_EQ(Counter("ssd.damaged_copies"), 0u);
}

// RocksDB drops the damaged end of its log, and with it what was written last.
TEST_F(TierTest, T6AfterAClearAndAKillADamagedOrMissingLogBringsNothingBack) {
  for (const bool one_space : {false, true}) {
    for (const bool removed : {false, true}) {
      cache_.reset();  // it writes there
      std::filesystem::remove_all(Directory());
      LiveAndBeKilled(OnDisk(), [&] {
        StoreOnSsd(0, 6);
        EXPECT_TRUE(cache_->Clear(one_space ? &id_ : nullptr).ok());
        return std::string();
      });
      ForFiles(".log", [&](const std::string& path) {
        removed ? (void)std::filesystem::remove(path) : FlipIn(path, 20);
      });
      Open(OnDisk());
      EXPECT_EQ(Counter("ssd.metadata_damaged"), 1u) << "it is said";
      EXPECT_EQ(Hits(0, 6), 0u) << "cleared, of " << (one_space ? "one space" : "all");
      StoreOnSsd(3, 6);
      ForgetArena();
      Open(OnDisk());
      EXPECT_EQ(Hits(0, 9), 6 * 300u) << "what was stored since is there";
    }
  }
}

TEST_F(TierTest, T6AfterAPurgeAndAKillADamagedLogBringsNothingBack) {
  for (const int steps : {1, 100}) {
    cache_.reset();  // it writes there
    std::filesystem::remove_all(Directory());
    LiveAndBeKilled(OnDisk(), [&] {
      StoreOnSsd(0, 6);
      uint64_t cursor = 0;
      for (int i = 0; i < steps; ++i) {
        const auto step = cache_->Purge(&id_, cursor);
        EXPECT_TRUE(step.ok()) << step.status();
        if (!step.ok() || step->next == 0) break;
        cursor = step->next;
      }
      return std::string();
    });
    ForFiles(".log", [](const std::string& path) { FlipIn(path, 20); });
    Open(OnDisk());
    EXPECT_EQ(Hits(0, 6), 0u) << steps;
  }
}

TEST_F(TierTest, T6WithoutAnyWholeFileOfBordersNothingOlderIsServedAndItIsSaid) {
  LiveAndBeKilled(OnDisk(), [&] {
    StoreOnSsd(0, 6);
    EXPECT_TRUE(cache_->Clear(&id_).ok());
    return std::string();
  });
  ForFiles("", [](const std::string& path) {
    if (path.find("prefixd.borders") != path.npos) FlipIn(path, 30);
  });
  Open(OnDisk());
  EXPECT_EQ(Counter("ssd.borders_lost"), 1u);
  EXPECT_EQ(Hits(0, 6), 0u);
  StoreOnSsd(20, 3);
  ForgetArena();
  Open(OnDisk());
  EXPECT_EQ(Counter("ssd.borders_lost"), 0u);
  EXPECT_EQ(Hits(20, 3), 3 * 300u);
}

TEST_F(TierTest, T6AClearOnAFullDiskClearsRamAtOnceAndTheDiskAsSoonAsItTakesIt) {
  Open(OnDisk());
  StoreOnSsd(0, 4);
  disk_->FailWrites(ENOSPC);
  const auto cleared = cache_->Clear(nullptr);
  ASSERT_TRUE(cleared.ok()) << cleared.status();
  EXPECT_GT(cleared->bytes, 0u);
  EXPECT_TRUE(cleared->border_waits);
  EXPECT_EQ(Counter("ssd.border_waits"), 1u);
  EXPECT_EQ(Hits(0, 4), 0u);
  EXPECT_TRUE(Until([&] { return Counter("ssd.border_errors") >= 3; })) << "it is tried again";
  EXPECT_EQ(Hits(0, 4), 0u);
  disk_->FailWrites(0);
  ASSERT_TRUE(Reaches("ssd.border_waits", 0));
  EXPECT_FALSE(cache_->Clear(nullptr)->border_waits);
  ForgetArena();
  Open(OnDisk());
  EXPECT_EQ(Hits(0, 4), 0u);
}

TEST_F(TierTest, T6ABorderThatWaitsIsOnDiskBeforeAKillOnceItIsSaidToBe) {
  LiveAndBeKilled(OnDisk(), [&] {
    StoreOnSsd(0, 4);
    disk_->FailWrites(ENOSPC);
    EXPECT_TRUE(cache_->Clear(&id_)->border_waits);
    disk_->FailWrites(0);
    EXPECT_TRUE(Reaches("ssd.border_waits", 0));
    return std::string();
  });
  Open(OnDisk());
  EXPECT_EQ(Hits(0, 4), 0u);
}

TEST_F(TierTest, T6WhatIsClearedWhileTheTierIsClosedIsNotServedFromItLater) {
  for (const bool one_space : {true, false}) {
    disk_->FailWrites(0);
    ForgetArena();
    Open(OnDisk());
    StoreOnSsd(0, 4);
    ForgetArena();
    disk_->FailWrites(EROFS);
    Open(OnDisk());
    const auto cleared = cache_->Clear(one_space ? &id_ : nullptr);  // nobody opened it yet
    ASSERT_TRUE(cleared.ok()) << cleared.status();
    EXPECT_TRUE(cleared->border_waits);
    EXPECT_EQ(Counter("ssd.border_waits"), 1u);
    ASSERT_TRUE(Store(identity_, OpenSpace(identity_), Sequence(3)).ok());
    disk_->FailWrites(0);
    ASSERT_TRUE(Reaches("ssd.closed", 0));
    ASSERT_TRUE(cache_->WaitLoaded(In(20000)));
    EXPECT_EQ(Counter("ssd.border_waits"), 0u);
    EXPECT_EQ(Hits(0, 4), 300u) << "what was stored after it";
    EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    ForgetArena();
    Open(OnDisk());
    EXPECT_EQ(Hits(0, 4), 300u);
  }
}

TEST_F(TierTest, TablesOfALaterFormatAreCountedAndSaidOnce) {
  Open(OnDisk());
  StoreOnSsd(1, 3);
  ForgetArena();
  ForFiles(".sst", [](const std::string& path) {  // the footer's version: 5 becomes 13
    FlipIn(path, std::filesystem::file_size(path) - 12);
  });
  cache::Options options = OnDisk();
  std::atomic<int> said{0};
  options.log = [&](cache::LogLevel, const std::string& line) {
    said += line.find("has a later format of tables: such files are left") != std::string::npos;
  };
  Open(options);
  EXPECT_EQ(Hits(1, 3), 0u) << "this RocksDB does not read them either";
  EXPECT_GT(Counter("ssd.unknown_formats"), 1u);
  EXPECT_EQ(said.load(), 1);
  StoreOnSsd(10, 1);
  EXPECT_EQ(Hits(10, 1), 300u);
  cache_.reset();  // before what its log counts
}

}  // namespace
}  // namespace prefixd::testing
