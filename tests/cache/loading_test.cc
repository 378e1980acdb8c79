// Pages that are not readable yet: told group by group, failed at any of them, left where loading
// does not pay; and tokens that somebody else is computing.
#include "tests/cache/shared_fixture.h"
#include "tests/cache/spoil.h"

namespace prefixd::testing {
namespace {

class LoadingTest : public SharedCacheTest {
 protected:
  // The tokens on SSD, nothing in RAM.
  void StoreOnSsd(const Tokens& tokens) {
    Open(SharedWithSsd());
    ASSERT_TRUE(Store(identity_, OpenSpace(identity_), tokens).ok());
    ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    cache_.reset();
    std::filesystem::remove(arena_path_);
  }
  const block::SpaceIdentity identity_ = SmallIdentity(16, 8);
  const Tokens tokens_ = RandomTokens(1, 100);
};

TEST_F(LoadingTest, GroupsBecomeReadyInOrderAndStandWhereTheSessionWasTold) {
  StoreOnSsd(tokens_);
  Open(SharedWithSsd());
  const auto begun = Attach(identity_);
  const auto files = MapFiles(begun);
  const auto acquired = Acquire(OpenSpace(identity_), tokens_);
  EXPECT_EQ(acquired.match.restorable_tokens, 100u);
  ASSERT_EQ(acquired.pages.size(), 4u * 7);
  ASSERT_TRUE(WaitForEvents(4));
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> told;
  for (const auto& page : acquired.pages) told[{page.group, page.first_token}] = page.offset;
  std::lock_guard<std::mutex> lock(events_mutex_);
  ASSERT_EQ(events_.size(), 4u);
  for (uint32_t g = 0; g < 4; ++g) {
    EXPECT_EQ(events_[g].kind, cache::SessionEvent::Kind::kLeaseReady);
    EXPECT_EQ(events_[g].group, g);
    EXPECT_EQ(events_[g].lease, acquired.lease);
    for (const auto& page : events_[g].pages) told[{page.group, page.first_token}] = page.offset;
  }
  std::vector<block::LeasedPage> pages = acquired.pages;
  for (auto& page : pages) page.offset = told[{page.group, page.first_token}];
  CheckInPlace(identity_, pages, tokens_, *files);
}

TEST_F(LoadingTest, WhatIsReadableNeedsNoEvent) {
  Open(Shared());
  const auto begun = Attach(identity_);
  const auto space = OpenSpace(identity_);
  ASSERT_TRUE(Store(identity_, space, tokens_).ok());
  EXPECT_TRUE(Acquire(space, tokens_).lease);
  cache_->EndSession(begun.session);
  EXPECT_TRUE(events_.empty());
}

TEST_F(LoadingTest, ABadPageFailsTheLeaseThereInWhicheverGroupItIs) {
  for (uint32_t bad = 0; bad < 4; ++bad) {
    std::filesystem::remove_all(dir_.path() + "/ssd");
    std::filesystem::remove(arena_path_);
    events_.clear();
    StoreOnSsd(tokens_);
    SpoilOnSsd(dir_.path() + "/ssd", bad, 48);
    Open(SharedWithSsd());
    const auto begun = Attach(identity_);
    const auto files = MapFiles(begun);
    const auto space = OpenSpace(identity_);
    const auto acquired = Acquire(space, tokens_);
    ASSERT_EQ(acquired.match.restorable_tokens, 100u);
    ASSERT_TRUE(WaitForEvents(5));
    {
      std::lock_guard<std::mutex> lock(events_mutex_);
      ASSERT_EQ(events_.size(), 5u);
      for (uint32_t g = 0, i = 0; g < 4; ++g, ++i) {
        if (g == bad) {
          EXPECT_EQ(events_[i].kind, cache::SessionEvent::Kind::kLeaseFailed);
          EXPECT_EQ(events_[i].group, bad);
          EXPECT_EQ(events_[i].usable_tokens, 48u);
          EXPECT_EQ(events_[i].reason, block::ShortenReason::kCorrupt);
          ++i;
        }
        EXPECT_EQ(events_[i].kind, cache::SessionEvent::Kind::kLeaseReady);
        EXPECT_EQ(events_[i].group, g);
      }
    }
    // What is before it can be used.
    std::vector<block::LeasedPage> usable;
    for (const auto& page : acquired.pages) {
      if (page.first_token < 48 && page.offset != block::kNoOffset) usable.push_back(page);
    }
    CheckInPlace(identity_, usable, tokens_, *files);
    EXPECT_EQ(cache_->ListLeases().at(0).tokens, 48u);
    cache::Request again;
    again.space = space;
    again.tokens = tokens_;
    EXPECT_EQ(cache_->Acquire(session_, again, In(1000))->match.restorable_tokens, 48u);
    cache_.reset();
  }
}

TEST_F(LoadingTest, AHitThatLoadsSlowerThanPrefillStopsWhereItPays) {
  StoreOnSsd(tokens_);
  Open(SharedWithSsd());
  const auto space = OpenSpace(identity_);
  cache::Request request;
  request.space = space;
  request.tokens = tokens_;
  request.prefill_tokens_per_s = 1e9;  // computes everything at once
  auto none = cache_->Acquire(session_, request, In(1000));
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->match.restorable_tokens, 0u);
  EXPECT_FALSE(none->lease);
  ASSERT_EQ(none->match.shortened_by.size(), 1u);
  EXPECT_EQ(none->match.shortened_by[0].reason, block::ShortenReason::kSlowerThanPrefill);
  EXPECT_EQ(none->match.shortened_by[0].tokens_lost, 100u);
  EXPECT_EQ(Counter("pages.promoted"), 0u);
  request.prefill_tokens_per_s = 10;  // ten seconds for what loads in a millisecond
  auto all = cache_->Acquire(session_, request, In(1000));
  EXPECT_EQ(all->match.restorable_tokens, 100u);
  EXPECT_TRUE(Until([this] { return Counter("pages.promoted") == 28; }));
  request.prefill_tokens_per_s = 1e9;  // from RAM nothing is ever given up
  EXPECT_EQ(cache_->Acquire(session_, request, In(1000))->match.restorable_tokens, 100u);
}

// 4 workers x 8 cold requests of one new system prompt: computed once.
TEST_F(LoadingTest, ANewSystemPromptIsComputedOnce) {
  Open(Shared());
  const auto space = OpenSpace(identity_);
  const Tokens prompt = RandomTokens(5, 160);
  std::atomic<uint64_t> computed{0};
  std::vector<std::thread> workers;
  for (uint64_t w = 0; w < 4; ++w) {
    workers.emplace_back([&, w] {
      const auto session = SessionWith(identity_, "w" + std::to_string(w));
      for (uint64_t r = 0; r < 8; ++r) {
        Tokens tokens = prompt;
        tokens.resize(160 + 40, static_cast<Token>(60000 + w * 8 + r));
        cache::Request request;
        request.space = space;
        request.tokens = tokens;
        request.wait_pending = std::chrono::seconds(10);
        bool planned = false;
        while (!planned) {
          auto acquired = cache_->Acquire(session, request, In(10000));
          ASSERT_TRUE(acquired.ok()) << acquired.status();
          auto plan = cache_->Reserve(
              session,
              {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}});
          ASSERT_TRUE(plan.ok());
          // Somebody was a moment faster: wait for them, or ask again for what they have stored.
          planned = std::ranges::none_of(plan->blocks, [&](const block::BlockPlan& block) {
            return block.state == block::BlockState::kPending ||
                   (block.state == block::BlockState::kPresent &&
                    block.first_token >= acquired->match.restorable_tokens);
          });
          if (acquired->lease) {
            ASSERT_TRUE(cache_->Release(session, {.lease = acquired->lease}).ok());
          }
          if (!planned) {
            ASSERT_TRUE(cache_->Abandon(session, plan->reservation).ok());
            continue;
          }
          computed += tokens.size() - acquired->match.restorable_tokens;
          for (const auto& block : plan->blocks) {
            if (block.state == block::BlockState::kPresent) continue;
            ASSERT_TRUE(PutBlock(session, identity_, plan->reservation, tokens, block).ok());
          }
          ASSERT_TRUE(cache_
                          ->Commit(session, {.reservation = plan->reservation,
                                             .tokens = static_cast<uint32_t>(tokens.size()),
                                             .sequence_end = true})
                          .ok());
        }
      }
      cache_->EndSession(session);
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(computed.load(), 160u + 32 * 40);
}

TEST_F(LoadingTest, AWaitForAnnouncedTokensEndsWithTheirWriterOrItsTime) {
  Open(Shared());
  const auto space = OpenSpace(identity_);
  const auto writer = SessionWith(identity_, "writer");
  ASSERT_TRUE(
      cache_
          ->Reserve(
              writer,
              {.space = space, .tokens = tokens_, .content = {}, .groups = {}, .writable = {}})
          .ok());
  cache::Request request;
  request.space = space;
  request.tokens = tokens_;
  request.wait_pending = std::chrono::milliseconds(30);
  auto in_vain = cache_->Acquire(session_, request, In(10000));
  EXPECT_EQ(in_vain->match.pending_tokens, 100u);
  request.wait_pending = std::chrono::hours(1);
  EXPECT_EQ(cache_->Acquire(session_, request, In(30))->match.pending_tokens, 100u);
  std::thread reader([&] {
    const auto start = std::chrono::steady_clock::now();
    auto acquired = cache_->Acquire(session_, request, In(20000));
    ASSERT_TRUE(acquired.ok());
    EXPECT_EQ(acquired->match.pending_tokens, 0u);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  });
  cache_->EndSession(writer);
  reader.join();
}

}  // namespace
}  // namespace prefixd::testing
