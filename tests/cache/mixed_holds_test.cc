// Pins, leases that fail and Fetch, of spaces with sliding and state groups: what is held is what
// the length needs, and less than all of it is nothing.
#include "tests/cache/mixed_fixture.h"
#include "tests/cache/spoil.h"

namespace prefixd::testing {
namespace {

class MixedHoldsTest : public MixedTest {
 protected:
  void StoreOnSsd(const Tokens& tokens) {
    Open(SharedWithSsd());
    StoreAll(identity_, OpenSpace(identity_), tokens, {100});
    ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    cache_.reset();
    std::filesystem::remove(arena_path_);
  }
  const block::SpaceIdentity identity_ = MixedIdentity(200003);
  const Tokens tokens_ = RandomTokens(1, 200);
};

// S4-12
TEST_F(MixedHoldsTest, APinKeepsTheWindowTheSinksAndTheSnapshotThroughChurn) {
  cache::Options options = RamOnly(uint64_t{32} << 20);
  options.snapshot_share = 0.1;  // about a dozen of them
  Open(options);
  const block::SpaceHandle space = OpenSpace(identity_);
  StoreAll(identity_, space, tokens_);
  const auto pin = [&] {
    cache::Request request;
    request.space = space;
    request.tokens = tokens_;
    return cache_->Pin(session_, request, {}, In(10000));
  };
  const auto pinned = pin();
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(pinned->tokens, 199u);
  const auto churn = [&](uint64_t seed) {
    for (uint64_t i = 0; i < 12; ++i) StoreAll(identity_, space, RandomTokens(seed + i, 2000));
  };
  churn(1000);
  EXPECT_GT(Counter("snapshots.evicted"), 0u);
  EXPECT_LE(cache_->GetStats().snapshot_bytes, cache_->GetStats().snapshot_share_bytes);
  const cache::Acquired acquired = Acquire(space, tokens_, 199);
  EXPECT_EQ(acquired.match.restorable_tokens, 199u);
  EXPECT_EQ(FetchAndCheck(identity_, acquired, tokens_), 199u);
  ASSERT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
  const auto unpinned = cache_->Unpin(pinned->pin);
  ASSERT_TRUE(unpinned.ok());
  EXPECT_EQ(*unpinned, pinned->bytes);
  EXPECT_EQ(cache_->GetStats().pinned_bytes, 0u);
  churn(2000);
  EXPECT_EQ(Acquire(space, tokens_, 199).match.restorable_tokens, 0u) << "it went like any other";
}

TEST_F(MixedHoldsTest, APinOfWhatIsOnSsdBringsAllThatItsLengthNeeds) {
  StoreOnSsd(tokens_);
  Open(SharedWithSsd());
  cache::Request request;
  request.space = OpenSpace(identity_);
  request.tokens = tokens_;
  const auto pinned = cache_->Pin(session_, request, {}, In(10000));
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(pinned->tokens, 199u);
  const cache::Acquired acquired = Acquire(request.space, tokens_, 199);
  EXPECT_EQ(acquired.match.ssd_bytes, 0u) << "readable at once";
  EXPECT_EQ(FetchAndCheck(identity_, acquired, tokens_), 199u);
}

// A page of each kind of group in turn: a full one, one of the window, the snapshot itself.
TEST_F(MixedHoldsTest, ABadPageOfAnyKindFailsTheWholeLease) {
  struct Bad {
    uint32_t group, first;
  };
  for (const Bad bad : {Bad{0, 48}, Bad{1, 176}, Bad{2, 192}}) {
    SCOPED_TRACE(bad.group);
    cache_.reset();
    std::filesystem::remove_all(dir_.path() + "/ssd");
    std::filesystem::remove(arena_path_);
    {
      std::lock_guard<std::mutex> lock(events_mutex_);
      events_.clear();
    }
    StoreOnSsd(tokens_);
    SpoilOnSsd(dir_.path() + "/ssd", bad.group, bad.first);
    Open(SharedWithSsd());
    const auto begun = Attach(identity_);
    const auto files = MapFiles(begun);
    const block::SpaceHandle space = OpenSpace(identity_);
    const cache::Acquired acquired = Acquire(space, tokens_, 199);
    ASSERT_EQ(acquired.match.restorable_tokens, 199u);
    ASSERT_TRUE(WaitForEvents(1));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::optional<cache::SessionEvent> failed;
    while (!failed && std::chrono::steady_clock::now() < end) {
      std::lock_guard<std::mutex> lock(events_mutex_);
      for (const cache::SessionEvent& event : events_) {
        if (event.kind == cache::SessionEvent::Kind::kLeaseFailed) failed = event;
      }
    }
    ASSERT_TRUE(failed.has_value());
    EXPECT_EQ(failed->group, bad.group);
    EXPECT_EQ(failed->usable_tokens, 0u) << "a shorter length needs other pages";
    EXPECT_EQ(failed->reason, block::ShortenReason::kCorrupt);
    ASSERT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
    // Asked again, the length is one whose pages are right; nothing stays held.
    const uint32_t again = ReadBack(identity_, space, tokens_);
    EXPECT_LT(again, 199u);
    // What was still being read for it is let go when it is there.
    const auto released = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (cache_->GetStats().leased_bytes != 0 && std::chrono::steady_clock::now() < released) {
    }
    EXPECT_EQ(cache_->GetStats().leased_bytes, 0u);
    // Stored again it is whole again.
    StoreAll(identity_, space, tokens_, {100});
    EXPECT_EQ(ReadBack(identity_, space, Tokens(tokens_.begin(), tokens_.begin() + 199)), 199u);
  }
}

TEST_F(MixedHoldsTest, AFetchOfALeaseWithABadPageEndsAtNothing) {
  StoreOnSsd(tokens_);
  SpoilOnSsd(dir_.path() + "/ssd", 1, 176);
  Open(SharedWithSsd());
  const block::SpaceHandle space = OpenSpace(identity_);
  const cache::Acquired acquired = Acquire(space, tokens_, 199);
  ASSERT_EQ(acquired.match.restorable_tokens, 199u);
  Collector got;
  ASSERT_TRUE(cache_
                  ->Fetch(session_, {.lease = acquired.lease, .groups = {}, .from_token = 0},
                          In(20000), &got)
                  .ok());
  ASSERT_FALSE(got.ready.empty());
  EXPECT_EQ(got.ready.back().usable_tokens, 0u);
  EXPECT_EQ(got.ready.back().reason, block::ShortenReason::kCorrupt);
  for (const cache::GroupReady& ready : got.ready) {
    EXPECT_TRUE(ready.group == 0 || ready.usable_tokens == 0) << ready.group;
  }
}

// Part of the groups of a mixed lease, from some token on: exactly those pages, cut to the token.
TEST_F(MixedHoldsTest, AFetchOfSomeGroupsFromSomeTokenSendsJustThat) {
  Open(RamOnly());
  const block::SpaceHandle space = OpenSpace(identity_);
  StoreAll(identity_, space, tokens_, {100});
  const cache::Acquired acquired = Acquire(space, tokens_, 199);
  ASSERT_EQ(acquired.match.restorable_tokens, 199u);
  const auto fetch = [&](std::vector<uint32_t> groups, uint32_t from_token) {
    Collector got;
    const absl::Status fetched = cache_->Fetch(
        session_, {.lease = acquired.lease, .groups = std::move(groups), .from_token = from_token},
        In(20000), &got);
    EXPECT_TRUE(fetched.ok()) << fetched;
    return got;
  };
  const Collector sliding = fetch({1}, 160);
  std::vector<uint32_t> firsts;
  for (const auto& [at, page] : sliding.pages) {
    EXPECT_EQ(at.first, 1u);
    firsts.push_back(at.second);
    EXPECT_TRUE(page == MakePage(identity_.groups[1], 0, tokens_, at.second,
                                 std::min(16u, 199 - at.second)));
  }
  EXPECT_EQ(firsts, (std::vector<uint32_t>{160, 176, 192}));
  const Collector state = fetch({2}, 0);
  ASSERT_EQ(state.pages.size(), 1u);
  EXPECT_TRUE(state.pages.begin()->second == MakePage(identity_.groups[2], 7, tokens_, 192, 7));
}

}  // namespace
}  // namespace prefixd::testing
