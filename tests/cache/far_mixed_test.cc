// The far tier of models with sliding windows and states, and of workers that map the arena.
#include "tests/cache/far_fixture.h"

namespace prefixd::testing {
namespace {

class FarMixedTest : public MixedTest {
 protected:
  cache::Options WithRemote() {
    cache::Options options = RamOnly();
    options.remote.store = store_;
    return options;
  }
  void OpenHost() {
    Open(WithRemote());
    space_ = OpenSpace(identity_);
  }
  uint32_t Bring(const Tokens& tokens) {
    cache::Request request;
    request.space = space_;
    request.tokens = tokens;
    return cache_->Bring(session_, request).value();
  }
  void StoreOn(const Tokens& tokens, const std::vector<uint32_t>& snapshots) {
    const Plan plan = Reserve(space_, tokens);
    ASSERT_TRUE(PutPages(identity_, plan).ok());
    for (const uint32_t position : snapshots) {
      ASSERT_TRUE(PutSnapshot(identity_, plan, position).ok());
    }
    ASSERT_TRUE(Commit(plan).ok());
    ASSERT_TRUE(cache_->WaitRemote(In(20000)));
  }

  std::shared_ptr<FakeRemoteStore> store_ = std::make_shared<FakeRemoteStore>();
  block::SpaceIdentity identity_ = MixedIdentity();
  block::SpaceHandle space_;
  const Tokens tokens_ = RandomTokens(1, 130);
};

TEST_F(FarMixedTest, ASnapshotAtABlockBorderTravelsAndTheHitEndsThere) {
  OpenHost();
  StoreOn(tokens_, {48, 96, 130});
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 96u);
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 96u);
}

TEST_F(FarMixedTest, OnlyThePagesOfTheWindowAndTheSinksAreBrought) {
  OpenHost();
  StoreOn(tokens_, {128});
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 128u);
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 128u);
  // 8 full pages, sliding ones of block 0 (sinks) and of [88, 128), which are blocks 5 to 7, and
  // one snapshot.
  EXPECT_EQ(Counter("remote.pages_loaded"), 8u + 4u + 1u);
}

TEST_F(FarMixedTest, WithoutASnapshotAtABorderNothingIsFoundOrBrought) {
  OpenHost();
  StoreOn(tokens_, {50, 130});
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 0u);
  EXPECT_EQ(store_->loads, 0u);
}

// Workers that map the arena read what arrives where it stands, and hear of each group.
TEST_F(FarMixedTest, AWorkerThatMapsTheArenaIsToldWhenPagesArrive) {
  identity_ = SmallIdentity();
  OpenHost();
  ASSERT_TRUE(Store(identity_, space_, tokens_).ok());
  ASSERT_TRUE(cache_->WaitRemote(In(20000)));
  cache::Options options = Shared();
  options.remote.store = store_;
  Open(options);
  const cache::BegunSession begun = Attach(identity_);
  const auto files = MapFiles(begun);
  space_ = OpenSpace(identity_);
  store_->Hold();
  EXPECT_EQ(Bring(tokens_), 128u);
  const cache::Acquired lease = Acquire(space_, tokens_);
  EXPECT_EQ(lease.match.restorable_tokens, 128u);
  EXPECT_TRUE(events_.empty());
  store_->Release();
  ASSERT_TRUE(WaitForEvents(2));
  std::vector<block::LeasedPage> pages;
  for (const cache::SessionEvent& event : events_) {
    EXPECT_EQ(event.kind, cache::SessionEvent::Kind::kLeaseReady);
    pages.insert(pages.end(), event.pages.begin(), event.pages.end());
  }
  EXPECT_EQ(pages.size(), 16u);
  CheckInPlace(identity_, pages, tokens_, *files);
}

TEST_F(FarMixedTest, APageThatDoesNotComeShortensTheLeaseByItsEvent) {
  identity_ = SmallIdentity();
  OpenHost();
  ASSERT_TRUE(Store(identity_, space_, tokens_).ok());
  ASSERT_TRUE(cache_->WaitRemote(In(20000)));
  cache::Options options = Shared();
  options.remote.store = store_;
  Open(options);
  Attach(identity_);
  space_ = OpenSpace(identity_);
  store_->Hold();
  EXPECT_EQ(Bring(tokens_), 128u);
  const cache::Acquired lease = Acquire(space_, tokens_);
  store_->down = true;
  store_->Release();
  ASSERT_TRUE(WaitForEvents(1));
  EXPECT_EQ(events_[0].kind, cache::SessionEvent::Kind::kLeaseFailed);
  EXPECT_EQ(events_[0].usable_tokens, 0u);
  EXPECT_EQ(events_[0].reason, block::ShortenReason::kEvicted);
}

// What came from another host survives kill -9 as what a worker stored does.
TEST_F(FarMixedTest, PagesThatArrivedSurviveAKill) {
  identity_ = SmallIdentity();
  OpenHost();
  ASSERT_TRUE(Store(identity_, space_, tokens_).ok());
  ASSERT_TRUE(cache_->WaitRemote(In(20000)));
  cache_.reset();
  cache::Options options = Shared();
  options.remote.store = store_;
  LiveAndBeKilled(options, [this]() -> std::string {
    space_ = OpenSpace(identity_);
    EXPECT_EQ(Bring(tokens_), 128u);
    EXPECT_EQ(ReadBack(identity_, space_, tokens_), 128u);
    return "";
  });
  options.remote.store = nullptr;
  Open(options);
  space_ = OpenSpace(identity_);
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 128u);
}

}  // namespace
}  // namespace prefixd::testing
