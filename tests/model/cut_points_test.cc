// The power goes at random points. What was on SSD by an answer of Flush is there afterwards, whole
// or, where the budget forgot it, shorter; nothing is ever wrong; the cache goes on.
// PREFIXD_CUT_POINTS sets how many cuts.
#include <cstdlib>

#include "tests/cache/fixture.h"
#include "tests/support/fault_files.h"

namespace prefixd::testing {
namespace {

constexpr uint64_t kCutsUsually = 120;
constexpr uint64_t kCutsADirectory = 30;
constexpr uint64_t kLongestWay = 90;  // changes of the disk until the power goes

class CutPointsTest : public CacheTest {
 protected:
  cache::Options OptionsOf(uint64_t directory) {
    cache::Options options = WithSsd(uint64_t{32} << 20);
    options.directory = dir_.path() + "/ssd" + std::to_string(directory);
    options.segment_bytes = 128 << 10;
    // Every second directory is so small that segments age out.
    if (Tight(directory)) options.ssd_budget_bytes = uint64_t{3} << 20;
    options.direct_io = directory % 3 == 0;
    options.ssd_files = FilesOn(disk_);
    options.log = [](cache::LogLevel, const std::string&) {};
    return options;
  }
  static bool Tight(uint64_t directory) { return directory % 2 == 1; }
  // Half of the sequences go on from one that was stored before.
  Tokens NextTokens() {
    Tokens tokens = RandomTokens(random_(), 20 + random_() % 100);
    if (durable_.empty() || random_() % 2 == 0) return tokens;
    Tokens longer = durable_[random_() % durable_.size()];
    if (longer.size() > 300) longer.resize(150);
    longer.insert(longer.end(), tokens.begin(), tokens.end());
    return longer;
  }
  void CheckDurable(block::SpaceHandle space, bool tight) {
    for (const Tokens& tokens : durable_) {
      const uint32_t back = ReadBack(identity_, space, tokens);  // compares every byte
      if (!tight) {
        ASSERT_EQ(back, tokens.size());
      }
    }
  }
  // Stores and flushes until the power is gone.
  void WorkUntilCut(block::SpaceHandle space) {
    disk_->CutAfter(random_() % kLongestWay);
    while (!disk_->is_off()) {
      std::vector<Tokens> stored;
      for (uint64_t i = 0; i <= random_() % 3; ++i) {
        stored.push_back(NextTokens());
        ASSERT_TRUE(Store(identity_, space, stored.back()).ok());
      }
      if (cache_->Flush(In(20000)).dirty_bytes > 0 || disk_->is_off()) continue;
      durable_.insert(durable_.end(), stored.begin(), stored.end());
    }
    for (const Tokens& tokens : durable_) ReadBack(identity_, space, tokens);
  }

  const block::SpaceIdentity identity_ = SmallIdentity(16, 2);
  const DiskPtr disk_ = std::make_shared<FaultDisk>(20261122);
  std::mt19937_64 random_{20261122};
  std::vector<Tokens> durable_;
};

TEST_F(CutPointsTest, NothingDurableIsMissingAndNothingIsWrongAfterPowerCuts) {
  const char* wanted = std::getenv("PREFIXD_CUT_POINTS");
  const uint64_t cuts = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : kCutsUsually;
  uint64_t checked = 0;
  for (uint64_t cut = 0; cut < cuts && !HasFailure(); ++cut) {
    const uint64_t directory = cut / kCutsADirectory;
    if (cut % kCutsADirectory == 0) durable_.clear();
    Open(OptionsOf(directory));
    ASSERT_NE(cache_, nullptr) << "cut " << cut;
    const auto space = OpenSpace(identity_);
    CheckDurable(space, Tight(directory));
    checked += durable_.size();
    if (durable_.size() > 24) durable_.erase(durable_.begin(), durable_.end() - 12);
    WorkUntilCut(space);
    cache_.reset();
    disk_->PowerCycle();
    ASSERT_FALSE(HasFailure()) << "cut " << cut;
  }
  RecordProperty("cuts", static_cast<int>(cuts));
  EXPECT_GT(checked, cuts / 2);
}

}  // namespace
}  // namespace prefixd::testing
