// Hints, scrubbing and the test at start: what moves pages or drops them without a request.
#include <algorithm>
#include <functional>
#include <thread>

#include "tests/cache/fixture.h"
#include "tests/support/fault_files.h"

namespace prefixd::testing {
namespace {

class PrefetchTest : public CacheTest {
 protected:
  cache::Options OnDisk(uint64_t ram = uint64_t{32} << 20) {
    cache::Options options = WithSsd(ram);
    options.ssd_files = FilesOn(disk_);
    return options;
  }
  void StoreAndReopen(const Tokens& tokens) {
    Open(OnDisk());
    ASSERT_TRUE(Store(identity_, OpenSpace(identity_), tokens).ok());
    ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    Open(OnDisk());
    ASSERT_TRUE(SelfTestEnds());
  }
  absl::StatusOr<cache::Prefetched> Prefetch(block::SpaceHandle space, const Tokens& tokens) {
    cache::Request request;
    request.space = space;
    request.tokens = tokens;
    return cache_->Prefetch(session_, request);
  }
  // False after ten seconds.
  bool Until(const std::function<bool()>& done) {
    const base::Deadline end = In(10000);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  bool Reaches(const std::string& counter, uint64_t value) {
    return Until([&] { return Counter(counter) >= value; });
  }
  // The segment of the page that every start writes and reads back is gone.
  bool SelfTestEnds() {
    return Until([&] {
      const block::Stats stats = cache_->GetStats();
      return std::ranges::any_of(stats.latencies, [](const block::NamedLatency& latency) {
        return latency.name == "ssd.self_test";
      });
    });
  }
  cache::VerifyProgress VerifyAll(uint64_t bytes_per_s = 0) {
    cache::VerifyProgress sum;
    uint64_t cursor = 0;
    do {
      const cache::VerifyProgress step = cache_->Verify(cursor, bytes_per_s, In(20000));
      sum.pages += step.pages;
      sum.bytes += step.bytes;
      sum.bad += step.bad;
      sum.unreadable += step.unreadable;
      sum.in_use += step.in_use;
      sum.passed_bytes += step.passed_bytes;
      sum.total_bytes = step.total_bytes;
      cursor = step.next;
    } while (cursor != 0);
    return sum;
  }

  const block::SpaceIdentity identity_ = SmallIdentity(64, 16);
  const DiskPtr disk_ = std::make_shared<FaultDisk>(7);
};

TEST_F(PrefetchTest, AHintBringsPagesToRamAndHoldsNothing) {
  const Tokens tokens = RandomTokens(1, 640);
  StoreAndReopen(tokens);
  const auto space = OpenSpace(identity_);
  const auto hint = Prefetch(space, tokens);
  ASSERT_TRUE(hint.ok()) << hint.status();
  EXPECT_EQ(hint->restorable_tokens, 640u);
  EXPECT_EQ(hint->tokens, 640u);
  EXPECT_GT(hint->bytes, 0u);
  const uint64_t pages = Counter("prefetch.pages");
  ASSERT_TRUE(Reaches("pages.promoted", pages));
  const cache::Acquired acquired = Acquire(space, tokens);
  for (const block::LeasedPage& page : acquired.pages) EXPECT_TRUE(page.in_ram);
  EXPECT_EQ(FetchAndCheck(identity_, acquired, tokens), 640u);
  EXPECT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
  EXPECT_EQ(Counter("pages.promoted"), pages);
  EXPECT_EQ(Prefetch(space, tokens)->bytes, 0u);
  EXPECT_EQ(cache_->GetStats().leases, 0u);
  EXPECT_EQ(Prefetch(space, RandomTokens(2, 100))->restorable_tokens, 0u);
}

TEST_F(PrefetchTest, HintsTakeAnEighthOfTheArena) {
  std::vector<Tokens> sequences;
  Open(OnDisk(uint64_t{64} << 20));
  for (uint64_t i = 0; i < 24; ++i) {
    sequences.push_back(RandomTokens(i, 1000));
    ASSERT_TRUE(Store(identity_, OpenSpace(identity_), sequences.back()).ok());
  }
  ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  Open(OnDisk());
  const auto space = OpenSpace(identity_);
  disk_->SlowReads(std::chrono::milliseconds(20));
  bool cut = false;
  for (const Tokens& tokens : sequences) {
    const auto hint = Prefetch(space, tokens);
    ASSERT_TRUE(hint.ok());
    EXPECT_LE(hint->bytes, uint64_t{4} << 20);
    cut = cut || hint->tokens < hint->restorable_tokens;
  }
  EXPECT_TRUE(cut);
  disk_->SlowReads(std::chrono::milliseconds(0));
  for (const Tokens& tokens : sequences) EXPECT_EQ(ReadBack(identity_, space, tokens), 1000u);
}

// The hint's own pages and a request's: each is read once.
TEST_F(PrefetchTest, ARequestBesideAHintReadsNoPageTwice) {
  const Tokens tokens = RandomTokens(1, 640);
  StoreAndReopen(tokens);
  const auto space = OpenSpace(identity_);
  ASSERT_TRUE(Prefetch(space, tokens).ok());
  EXPECT_EQ(ReadBack(identity_, space, tokens), 640u);
  EXPECT_EQ(Counter("pages.promoted"), Counter("prefetch.pages"));
}

TEST_F(PrefetchTest, VerifyFindsNothingWrongWithWhatIsWell) {
  const Tokens tokens = RandomTokens(1, 640);
  StoreAndReopen(tokens);
  const auto space = OpenSpace(identity_);
  EXPECT_EQ(ReadBack(identity_, space, tokens), 640u);  // in both tiers now
  const cache::VerifyProgress sum = VerifyAll();
  EXPECT_EQ(sum.bad + sum.unreadable, 0u);
  EXPECT_EQ(sum.pages, 2 * Counter("pages.promoted"));
  EXPECT_EQ(sum.passed_bytes, sum.total_bytes);
  EXPECT_EQ(Counter("verify.pages"), sum.pages);
}

TEST_F(PrefetchTest, VerifySaysWhatItPassedOver) {
  const Tokens tokens = RandomTokens(1, 640);
  StoreAndReopen(tokens);
  const auto space = OpenSpace(identity_);
  ASSERT_EQ(ReadBack(identity_, space, tokens), 640u);
  const uint64_t in_ram = Counter("pages.promoted");
  const uint64_t both = VerifyAll().pages;
  {
    const auto held = Acquire(space, tokens);
    const cache::VerifyProgress sum = VerifyAll();
    EXPECT_EQ(sum.in_use, in_ram);
    EXPECT_EQ(sum.pages, both - in_ram);
    EXPECT_EQ(sum.passed_bytes, sum.total_bytes);
    ASSERT_TRUE(cache_->Release(session_, {.lease = held.lease}).ok());
  }
  EXPECT_EQ(VerifyAll().in_use, 0u);
}

TEST_F(PrefetchTest, VerifyDropsBadPagesWhichAreStoredAgain) {
  const Tokens tokens = RandomTokens(1, 640);
  StoreAndReopen(tokens);
  const auto space = OpenSpace(identity_);
  disk_->CorruptReads(0.5);
  cache::VerifyProgress sum;
  // Until it is a page and not the records, which name the pages, that the disk does harm to.
  for (int round = 0; round < 20 && sum.bad == 0; ++round) sum = VerifyAll();
  disk_->CorruptReads(0);
  EXPECT_GT(sum.bad, 0u);
  EXPECT_EQ(Counter("check_failures"), sum.bad);
  EXPECT_LT(Acquire(space, tokens).match.restorable_tokens, 640u) << "matched all the same";
  ASSERT_TRUE(Store(identity_, space, tokens).ok());
  EXPECT_EQ(ReadBack(identity_, space, tokens), 640u);
}

TEST_F(PrefetchTest, VerifyKeepsToItsRate) {
  const Tokens tokens = RandomTokens(1, 640);
  StoreAndReopen(tokens);
  const auto begun = std::chrono::steady_clock::now();
  const cache::VerifyProgress sum = VerifyAll(4'000'000);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  EXPECT_GE(took.count(), static_cast<double>(sum.bytes) / 4e6 * 0.99);
}

TEST_F(PrefetchTest, AStartOnADiskThatFailsIsSaidAndServes) {
  disk_->FailTables(EIO);
  Open(OnDisk());
  EXPECT_TRUE(Reaches("ssd.self_test_failed", 1));
  EXPECT_EQ(Counter("ssd.failing"), 1u);
  const auto space = OpenSpace(identity_);
  const Tokens tokens = RandomTokens(1, 640);
  ASSERT_TRUE(Store(identity_, space, tokens).ok());
  EXPECT_EQ(ReadBack(identity_, space, tokens), 640u);
  disk_->FailTables(0);
  EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  EXPECT_EQ(Counter("ssd.failing"), 0u);
  Open(OnDisk());
  EXPECT_EQ(ReadBack(identity_, OpenSpace(identity_), tokens), 640u);
  EXPECT_EQ(Counter("ssd.self_test_failed"), 0u);
}

}  // namespace
}  // namespace prefixd::testing
