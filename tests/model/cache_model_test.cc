// Model test: seeded random operations on the whole cache against a plain list of stored sequences.
// Whatever happens below (eviction, spill, promotion, restart, clear, damage), what comes back is
// byte for byte what the tokens make, or the match is shorter; and bytes that are leased never
// change under a reader, restarts included.
#include "tests/cache/shared_fixture.h"

namespace prefixd::testing {
namespace {

class CacheModelTest : public SharedCacheTest, public ::testing::WithParamInterface<uint64_t> {
 protected:
  // A lease that is kept while everything else goes on.
  struct Kept {
    Tokens tokens;
    std::vector<block::LeasedPage> pages;
    block::LeaseId lease;
  };

  void TearDown() override {
    files_.reset();
    SharedCacheTest::TearDown();
  }
  // A stored sequence cut somewhere and continued otherwise, or a fresh one; few distinct tokens,
  // so that prefixes collide often.
  Tokens NextTokens() {
    Tokens tokens;
    if (!stored_.empty() && random_() % 5 != 0) {
      tokens = stored_[random_() % stored_.size()];
      tokens.resize(random_() % (tokens.size() + 1));
    }
    const size_t extra = random_() % 90 + (tokens.empty() ? 1 : 0);
    for (size_t i = 0; i < extra; ++i) tokens.push_back(static_cast<Token>(random_() % 3));
    return tokens;
  }
  size_t LongestCommonPrefix(const Tokens& request) const {
    size_t longest = 0;
    for (const Tokens& tokens : stored_) {
      const auto [a, b] =
          std::mismatch(tokens.begin(), tokens.end(), request.begin(), request.end());
      longest = std::max(longest, static_cast<size_t>(a - tokens.begin()));
    }
    return longest;
  }
  // The worker lives on through a restart: its mapping, its leases.
  void Start(const cache::Options& options) {
    Open(options);
    const bool again = files_ != nullptr;
    begun_ = Attach(identity_, 0, again ? std::optional(begun_.key) : std::nullopt);
    EXPECT_EQ(begun_.resumed, again);
    if (!again) files_ = MapFiles(begun_);
    for (Kept& kept : kept_) kept.lease = begun_.resumed_lease;
    space_ = OpenSpace(identity_);
  }
  void Read(const Tokens& request) {
    const size_t longest = LongestCommonPrefix(request);
    const auto acquired = Acquire(space_, request);
    EXPECT_LE(acquired.match.matched_tokens, longest);
    if (everything_kept_) {
      EXPECT_EQ(acquired.match.matched_tokens, longest);
    }
    const uint32_t usable = FetchAndCheck(identity_, acquired, request);
    full_hits_ += usable == longest && longest > 0;
    if (!acquired.lease) return;
    if (usable == acquired.match.restorable_tokens && kept_.size() < 4 && random_() % 4 == 0) {
      kept_.push_back({request, acquired.pages, acquired.lease});
      std::erase_if(kept_.back().pages, [](const block::LeasedPage& page) {
        return page.offset == block::kNoOffset;  // it was on its way for another request
      });
      return;
    }
    EXPECT_TRUE(
        cache_->Release(session_, {.lease = acquired.lease, .used_tokens = usable, .load_us = 100})
            .ok());
  }
  void CheckKept() {
    for (const Kept& kept : kept_) {
      for (const block::LeasedPage& page : kept.pages) {
        // Of a page that is cut to the lease, what is behind belongs to another sequence.
        if (page.tokens < page.page_tokens) continue;
        const auto want = MakePage(identity_.groups[page.group], page.rung, kept.tokens,
                                   page.first_token, page.page_tokens);
        const auto got = files_->at(page.offset, want.size());
        EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin()))
            << "leased bytes changed in group " << page.group << " at " << page.first_token;
        ++kept_checks_;
      }
    }
  }
  void ReleaseOldest() {
    if (kept_.empty()) return;
    const block::LeaseId lease = kept_.front().lease;
    EXPECT_TRUE(cache_->Release(session_, {.lease = lease}).ok());
    std::erase_if(kept_, [lease](const Kept& kept) { return kept.lease == lease; });
  }
  void Step(const cache::Options& options) {
    const uint64_t dice = random_() % 1000;
    if (dice < 480) {
      const Tokens tokens = NextTokens();
      auto stored = Store(identity_, space_, tokens);
      ASSERT_TRUE(stored.ok()) << stored.status();
      stored_.push_back(tokens);
    } else if (dice < 930) {
      Read(NextTokens());
    } else if (dice < 970) {
      CheckKept();
      ReleaseOldest();
    } else if (dice < 985) {
      EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    } else if (dice < 997) {
      if (dice % 2 == 0) {
        EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
      }
      Start(options);  // what was in RAM alone is in the arena still
      CheckKept();
    } else {
      ASSERT_TRUE(cache_->Clear(nullptr).ok());
      stored_.clear();
      EXPECT_EQ(Summary().stored_tokens, 0u);
    }
  }

  const block::SpaceIdentity identity_ = SmallIdentity(16, 8);
  std::mt19937_64 random_{GetParam()};
  std::vector<Tokens> stored_;
  std::vector<Kept> kept_;
  cache::BegunSession begun_;
  std::unique_ptr<MappedFiles> files_;
  block::SpaceHandle space_;
  const bool everything_kept_ = true;  // the SSD tier has room for all of it
  size_t full_hits_ = 0, kept_checks_ = 0;
};

TEST_P(CacheModelTest, NothingWrongEverComesBackAndLeasedBytesNeverChange) {
  cache::Options options = SharedWithSsd(uint64_t{32} << 20);
  options.segment_bytes = uint64_t{1} << 20;
  Start(options);
  for (int step = 0; step < 1500; ++step) {
    Step(options);
    ASSERT_FALSE(HasFailure()) << "step " << step << " of seed " << GetParam();
  }
  EXPECT_GT(full_hits_, 50u);
  EXPECT_GT(kept_checks_, 100u);
  while (!kept_.empty()) ReleaseOldest();
  files_.reset();
  cache_->EndSession(session_);
  const block::Stats stats = cache_->GetStats();
  EXPECT_EQ(stats.leases, 0u);
  EXPECT_EQ(stats.leased_bytes, 0u);
  EXPECT_EQ(stats.reservations, 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CacheModelTest, ::testing::Values(1, 2, 3, 4));

// Four sessions store and read overlapping sequences at once while the budget forces eviction and
// promotion.
TEST_F(CacheTest, ConcurrentSessionsOnlyEverSeeRightBytes) {
  cache::Options options = WithSsd(uint64_t{32} << 20);
  options.segment_bytes = uint64_t{2} << 20;
  Open(options);
  const auto identity = SmallIdentity(64, 16);
  const auto space = OpenSpace(identity);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> hits{0};
  for (uint64_t worker = 0; worker < 4; ++worker) {
    threads.emplace_back([&, worker] {
      const block::SessionId session = SessionWith(identity, "w" + std::to_string(worker));
      std::mt19937_64 random(worker);
      for (int round = 0; round < 40; ++round) {
        Tokens tokens = RandomTokens(random() % 12, 600);
        tokens.resize(100 + random() % 500);
        cache::Request request;
        request.space = space;
        request.tokens = tokens;
        auto acquired = cache_->Acquire(session, request, In(5000));
        ASSERT_TRUE(acquired.ok()) << acquired.status();
        if (acquired->lease) {
          Collector got;
          ASSERT_TRUE(cache_
                          ->Fetch(session,
                                  {.lease = acquired->lease, .groups = {}, .from_token = 0},
                                  In(10000), &got)
                          .ok());
          for (const auto& [key, page] : got.pages) {
            ASSERT_TRUE(page == MakePage(identity.groups[key.first], 0, tokens, key.second,
                                         got.tokens[key]));
          }
          hits += got.pages.size();
          ASSERT_TRUE(cache_->Release(session, {.lease = acquired->lease}).ok());
        }
        auto stored = Store(identity, space, tokens, session);
        ASSERT_TRUE(stored.ok()) << stored.status();
      }
      cache_->EndSession(session);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(hits.load(), 100u);
  EXPECT_EQ(cache_->GetStats().leased_bytes, 0u);
}

}  // namespace
}  // namespace prefixd::testing
