// A start that serves while the index of the SSD tier is loaded.
#include <future>

#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

class IndexLoadingTest : public CacheTest {
 protected:
  ~IndexLoadingTest() override { Go(); }

  // A cache that serves and whose index begins to load at Go().
  void OpenAndHold() {
    cache::Options options = WithSsd();
    options.open_within = std::chrono::milliseconds(0);
    options.log = [held = go_.get_future().share()](cache::LogLevel, const std::string& line) {
      if (line.starts_with("index: loading from")) held.wait();
    };
    Open(options);
    space_ = OpenSpace(identity_);
  }
  void StoreAndOpenAndHold() {
    Open(WithSsd());
    space_ = OpenSpace(identity_);
    ASSERT_TRUE(Store(identity_, space_, tokens_).ok());
    ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    OpenAndHold();
  }
  void Go() {
    if (!std::exchange(gone_, true)) go_.set_value();
  }
  void Load() {
    Go();
    ASSERT_TRUE(cache_->WaitLoaded(In(60000)));
  }
  block::MatchAnswer Match() {
    cache::Request request;
    request.space = space_;
    request.tokens = tokens_;
    const auto answer = cache_->Match(session_, request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : block::MatchAnswer{};
  }

  const block::SpaceIdentity identity_ = SmallIdentity(64, 16);
  const Tokens tokens_ = RandomTokens(1, 640);
  block::SpaceHandle space_;
  std::promise<void> go_;
  bool gone_ = false;
};

TEST_F(IndexLoadingTest, MatchesAreShorterAndSayWhyUntilTheIndexIsWhole) {
  StoreAndOpenAndHold();
  EXPECT_FALSE(cache_->WaitLoaded(In(0)));
  EXPECT_EQ(Counter("index.served_while_loading"), 1u);
  block::MatchAnswer answer = Match();
  EXPECT_EQ(answer.matched_tokens, 0u);
  EXPECT_EQ(answer.ended_by, block::EndReason::kIndexLoading);
  Load();
  answer = Match();
  EXPECT_EQ(answer.restorable_tokens, 640u);
  EXPECT_EQ(answer.ended_by, block::EndReason::kRequestEnded);
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 640u);
}

TEST_F(IndexLoadingTest, WhatIsStoredMeanwhileIsKeptOnceAndNotWrittenAgain) {
  StoreAndOpenAndHold();
  const Tokens front(tokens_.begin(), tokens_.begin() + 192), other = RandomTokens(2, 192);
  ASSERT_TRUE(Store(identity_, space_, front).ok());
  ASSERT_TRUE(Store(identity_, space_, other).ok());
  EXPECT_EQ(ReadBack(identity_, space_, front), 192u);
  const uint64_t stored = cache_->GetStats().dirty_bytes;
  Load();
  EXPECT_EQ(cache_->GetStats().dirty_bytes, stored / 2);  // the other sequence
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 640u);
  EXPECT_EQ(ReadBack(identity_, space_, other), 192u);
  EXPECT_EQ(Summary().stored_tokens, 832u);
}

TEST_F(IndexLoadingTest, ClearWaitsAndNothingComesBackAfterIt) {
  StoreAndOpenAndHold();
  auto cleared = std::async(std::launch::async, [&] { return cache_->Clear(nullptr); });
  Load();
  ASSERT_TRUE(cleared.get().ok());
  EXPECT_EQ(Match().matched_tokens, 0u);
  Open(WithSsd());
  space_ = OpenSpace(identity_);
  EXPECT_EQ(Match().matched_tokens, 0u);
}

TEST_F(IndexLoadingTest, AFlushKeepsItsDeadlineAndSaysWhatIsNotSaved) {
  StoreAndOpenAndHold();
  ASSERT_TRUE(Store(identity_, space_, RandomTokens(2, 64)).ok());
  EXPECT_GT(cache_->Flush(In(1)).dirty_bytes, 0u);
  Load();
  EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
}

TEST_F(IndexLoadingTest, AStopDoesNotWaitForTheIndex) {
  StoreAndOpenAndHold();
  ASSERT_TRUE(Store(identity_, space_, RandomTokens(2, 64)).ok());
  auto stopped = std::async(std::launch::async, [&] { cache_.reset(); });
  Go();
  stopped.get();
  Open(WithSsd());
  space_ = OpenSpace(identity_);
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 640u);
}

}  // namespace
}  // namespace prefixd::testing
