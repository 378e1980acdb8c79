// Purge: nothing of a space is left, neither in the arena nor in any file of the store, and other
// spaces keep what they have.
#include <fcntl.h>

#include <fstream>
#include <iterator>

#include "tests/cache/shared_fixture.h"

namespace prefixd::testing {
namespace {

constexpr size_t kNeedleBytes = 48;

class PurgeTest : public SharedCacheTest {
 protected:
  PurgeTest() { other_identity_.model = "other"; }

  cache::Options Small() {
    cache::Options options = SharedWithSsd();
    options.segment_bytes = uint64_t{1} << 20;
    return options;
  }
  // Both spaces side by side in every segment, in RAM too.
  void StoreBoth() {
    const auto mine = OpenSpace(identity_), others = OpenSpace(other_identity_);
    for (uint64_t i = 0; i < kSequences; ++i) {
      ASSERT_TRUE(Store(identity_, mine, Mine(i)).ok());
      ASSERT_TRUE(Store(other_identity_, others, Others(i)).ok());
    }
    ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  }
  static Tokens Mine(uint64_t i) { return RandomTokens(i, 300); }
  static Tokens Others(uint64_t i) { return RandomTokens(1000 + i, 300); }

  // To the end; `steps`: so many of them at most.
  cache::Cache::PurgeProgress Purge(int steps = 1 << 20) {
    const block::SpaceId id = block::IdOf(identity_);
    cache::Cache::PurgeProgress sum;
    uint64_t cursor = 0;
    do {
      const auto step = cache_->Purge(&id, cursor);
      EXPECT_TRUE(step.ok()) << step.status();
      if (!step.ok()) break;
      sum.cleared.bytes += step->cleared.bytes;
      sum.passed_bytes += step->passed_bytes;
      sum.removed_bytes += step->removed_bytes;
      sum.rewritten_bytes += step->rewritten_bytes;
      sum.leased_bytes = step->leased_bytes;
      sum.total_bytes = step->total_bytes;
      cursor = step->next;
    } while (cursor != 0 && --steps > 0);
    return sum;
  }
  uint32_t OthersHit() {
    const auto others = OpenSpace(other_identity_);
    uint32_t hits = 0;
    for (uint64_t i = 0; i < kSequences; ++i) hits += ReadBack(other_identity_, others, Others(i));
    return hits;
  }

  // Where something of the space stands: token ids or page bytes.
  std::vector<std::string> Found(uint64_t first = 0, uint64_t end = kSequences) {
    std::vector<std::string> where;
    ReadAll();
    for (uint64_t i = first; i < end; ++i) {
      const Tokens tokens = Mine(i);
      const auto page = MakePage(identity_.groups[0], 0, tokens, 64, 16);
      Look(base::AsText(std::as_bytes(std::span(tokens))).substr(64, kNeedleBytes), &where);
      Look(base::AsText(page).substr(0, kNeedleBytes), &where);
    }
    return where;
  }

  static constexpr uint64_t kSequences = 24;
  const block::SpaceIdentity identity_ = SmallIdentity();
  block::SpaceIdentity other_identity_ = SmallIdentity();

 private:
  void Look(std::string_view needle, std::vector<std::string>* where) {
    for (const auto& [path, text] : files_) {
      if (text.find(needle) != std::string::npos) where->push_back(path);
    }
  }
  void ReadAll() {
    files_.clear();
    files_[arena_path_] = DataOf(arena_path_);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      files_[entry.path()].assign(std::istreambuf_iterator<char>(file), {});
    }
  }
  // Without the holes.
  static std::string DataOf(const std::string& path) {
    std::string data;
    const int fd = open(path.c_str(), O_RDONLY);
    for (off_t at = lseek(fd, 0, SEEK_DATA); at >= 0;) {
      const off_t hole = lseek(fd, at, SEEK_HOLE);
      const size_t had = data.size();
      data.resize(had + static_cast<size_t>(hole - at));
      EXPECT_EQ(pread(fd, data.data() + had, data.size() - had, at), hole - at);
      at = lseek(fd, hole, SEEK_DATA);
    }
    close(fd);
    return data;
  }
  std::map<std::string, std::string> files_;
};

TEST_F(PurgeTest, NothingOfTheSpaceIsLeftInTheArenaNorInAnyFile) {
  Open(Small());
  StoreBoth();
  ASSERT_FALSE(Found(0, 1).empty());
  ASSERT_TRUE(cache_->Clear(nullptr).ok());
  ASSERT_FALSE(Found(0, 1).empty());  // it waits
  StoreBoth();
  const auto purged = Purge();
  EXPECT_EQ(purged.leased_bytes, 0u);
  EXPECT_GT(purged.removed_bytes, 0u);
  EXPECT_GT(purged.rewritten_bytes, 0u);
  EXPECT_GE(purged.passed_bytes, purged.total_bytes / 2);
  EXPECT_TRUE(Found().empty()) << Found().front();
  EXPECT_EQ(OthersHit(), kSequences * 300);
  EXPECT_EQ(ReadBack(identity_, OpenSpace(identity_), Mine(0)), 0u);
}

TEST_F(PurgeTest, WhatOtherSpacesHadInTheSegmentsIsOnSsdStill) {
  Open(Small());
  StoreBoth();
  Purge();
  std::filesystem::remove(arena_path_);
  Open(Small());
  EXPECT_EQ(OthersHit(), kSequences * 300);
  EXPECT_EQ(Counter("check_failures"), 0u);
}

TEST_F(PurgeTest, WhatIsLeasedStaysReadableAndIsZeroedWhenItIsReleased) {
  Open(Small());
  StoreBoth();
  const auto files = MapFiles(Attach(identity_));
  const cache::Acquired held = Acquire(OpenSpace(identity_), Mine(3));
  ASSERT_EQ(held.match.restorable_tokens, 300u);
  EXPECT_GT(Purge().leased_bytes, 0u);
  CheckInPlace(identity_, held.pages, Mine(3), *files);
  EXPECT_FALSE(Found(3, 4).empty());
  EXPECT_TRUE(Found(4, kSequences).empty());
  ASSERT_TRUE(cache_->Release(session_, {.lease = held.lease}).ok());
  EXPECT_TRUE(Found().empty());
}

TEST_F(PurgeTest, OneThatIsKilledIsGoneOnWithAndLosesNothingOfOthers) {
  for (const int steps : {1, 2, 4}) {
    LiveAndBeKilled(Small(), [this, steps] {
      StoreBoth();
      Purge(steps);
      return std::string();
    });
    Open(Small());
    EXPECT_EQ(ReadBack(identity_, OpenSpace(identity_), Mine(0)), 0u);
    EXPECT_EQ(OthersHit(), kSequences * 300) << steps;
    Purge();
    EXPECT_TRUE(Found().empty()) << steps << ": " << Found().front();
    EXPECT_EQ(OthersHit(), kSequences * 300) << steps;
  }
}

TEST_F(PurgeTest, WhatIsStoredAgainAfterwardsIsFound) {
  Open(Small());
  StoreBoth();
  Purge();
  StoreBoth();
  EXPECT_EQ(ReadBack(identity_, OpenSpace(identity_), Mine(0)), 300u);
}

}  // namespace
}  // namespace prefixd::testing
