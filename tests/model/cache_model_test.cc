// Model test: seeded random operations on the whole cache against a plain list of stored sequences.
// Whatever happens below (eviction, spill, promotion, restart, clear, damage), what comes back is
// byte for byte what the tokens make, or the match is shorter.
#include <fstream>

#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

class CacheModelTest : public CacheTest, public ::testing::WithParamInterface<uint64_t> {
 protected:
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
  std::mt19937_64 random_{GetParam()};
  std::vector<Tokens> stored_;
};

TEST_P(CacheModelTest, NothingWrongEverComesBack) {
  const auto identity = SmallIdentity(16, 8);
  cache::Options options = WithSsd(uint64_t{32} << 20);
  options.segment_bytes = uint64_t{1} << 20;
  Open(options);
  auto space = OpenSpace(identity);
  bool everything_kept = true;  // until something is allowed to be lost
  size_t full_hits = 0;
  for (int step = 0; step < 1500; ++step) {
    const uint64_t dice = random_() % 1000;
    if (dice < 500) {
      const Tokens tokens = NextTokens();
      auto stored = Store(identity, space, tokens);
      ASSERT_TRUE(stored.ok()) << stored.status();
      stored_.push_back(tokens);
    } else if (dice < 970) {
      const Tokens request = NextTokens();
      const size_t longest = LongestCommonPrefix(request);
      const auto acquired = Acquire(space, request);
      EXPECT_LE(acquired.match.matched_tokens, longest);
      if (everything_kept) {
        EXPECT_EQ(acquired.match.matched_tokens, longest);
      }
      const uint32_t usable = FetchAndCheck(identity, acquired, request);
      full_hits += usable == longest && longest > 0;
      if (acquired.lease) {
        ASSERT_TRUE(cache_
                        ->Release(session_,
                                  {.lease = acquired.lease, .used_tokens = usable, .load_us = 100})
                        .ok());
      }
    } else if (dice < 985) {
      EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    } else if (dice < 995) {
      EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
      Open(options);
      space = OpenSpace(identity);
    } else if (dice < 997) {
      Open(options);  // without a flush: what was in RAM alone is lost
      space = OpenSpace(identity);
      everything_kept = false;
    } else {
      ASSERT_TRUE(cache_->Clear(nullptr).ok());
      stored_.clear();
      everything_kept = true;
      EXPECT_EQ(Summary().stored_tokens, 0u);
    }
    ASSERT_FALSE(HasFailure()) << "step " << step << " of seed " << GetParam();
  }
  EXPECT_GT(full_hits, 50u);
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
