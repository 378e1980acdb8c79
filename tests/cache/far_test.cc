// The far tier: what one host stored, another one has.
#include "cache/far/writer.h"
#include "tests/cache/far_fixture.h"

namespace prefixd::testing {
namespace {

TEST_F(FarTest, R1WhatOneHostStoredIsAHitOnAnotherToTheLastWholeBlock) {
  OpenHost();
  StoreAndWrite(tokens_);
  OpenHost();
  EXPECT_EQ(Acquire(space_, tokens_).match.restorable_tokens, 0u);
  store_->Hold();  // what came before it is looked up counts as RAM's
  EXPECT_EQ(Bring(tokens_), 96u);
  const cache::Acquired lease = Acquire(space_, tokens_);
  store_->Release();
  EXPECT_EQ(FetchAndCheck(identity_, lease, tokens_), 96u);  // every byte is compared
  EXPECT_EQ(Counter("remote.tokens_found"), 96u);
  EXPECT_EQ(Counter("tokens.restorable.remote"), 96u);
}

TEST_F(FarTest, AHitOfThisHostAsksNobody) {
  OpenHost();
  StoreAndWrite(tokens_);
  const uint64_t finds = store_->finds;
  cache::Request request{
      .space = space_, .tokens = tokens_, .content = {}, .groups = {}, .readable = {}};
  const auto here = cache_->AcquireHere(session_, request, In(1000));
  ASSERT_TRUE(here.ok());
  EXPECT_EQ((*here)->match.restorable_tokens, 100u);
  EXPECT_EQ(store_->finds, finds);
}

TEST_F(FarTest, WhatFallsShortIsSaidBeforeAnythingIsHeldOrCounted) {
  OpenHost();
  cache::Request request{
      .space = space_, .tokens = tokens_, .content = {}, .groups = {}, .readable = {}};
  const auto here = cache_->AcquireHere(session_, request, In(1000));
  ASSERT_TRUE(here.ok());
  EXPECT_FALSE(here->has_value());
  EXPECT_EQ(cache_->GetStats().leases, 0u);
  EXPECT_EQ(Counter("tokens.requested"), 0u);
}

TEST_F(FarTest, OnlyWhatIsMissingIsAskedForAndBrought) {
  OpenHost();
  StoreAndWrite(tokens_);
  OpenHost();
  Tokens head(tokens_.begin(), tokens_.begin() + 32);
  ASSERT_TRUE(Store(identity_, space_, head).ok());
  ASSERT_TRUE(cache_->WaitRemote(In(20000)));
  EXPECT_EQ(Bring(tokens_), 64u);
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 96u);
  EXPECT_EQ(store_->loads, 4u);
}

TEST_F(FarTest, R7ASecondHostWritesNothingThatIsThere) {
  OpenHost();
  StoreAndWrite(tokens_);
  const uint64_t stores = store_->stores;
  OpenHost();
  StoreAndWrite(tokens_);
  EXPECT_EQ(store_->stores, stores);
}

TEST_F(FarTest, AMissIsOneQuestionAndNoneAgainForAWhile) {
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 0u);
  EXPECT_EQ(store_->finds, 1u);
  EXPECT_EQ(Bring(tokens_), 0u);
  EXPECT_EQ(store_->finds, 1u);
  clock_.Advance(5'000'001);
  EXPECT_EQ(Bring(tokens_), 0u);
  EXPECT_EQ(store_->finds, 2u);
}

TEST_F(FarTest, R9AnotherTenantFindsNothing) {
  OpenHost();
  StoreAndWrite(tokens_);
  OpenHost(WithRemote("another"));
  EXPECT_EQ(Bring(tokens_), 0u);
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 0u);
}

TEST_F(FarTest, AModelOfAnotherIdentityFindsNothing) {
  OpenHost();
  StoreAndWrite(tokens_);
  identity_.weights_digest[0] = std::byte{7};
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 0u);
}

TEST_F(FarTest, AModelThatIsKnownByNameAloneStaysOnItsHost) {
  identity_.weights_digest = {};
  cache::Options options = WithRemote();
  options.trust_model_names = true;
  OpenHost(options);
  StoreAndWrite(tokens_);
  EXPECT_EQ(store_->size(), 0u);
  EXPECT_EQ(Bring(tokens_), 0u);
  EXPECT_EQ(store_->finds, 0u);
}

TEST_F(FarTest, R5AChangedByteIsNeverServedAndCounted) {
  OpenHost();
  StoreAndWrite(tokens_);
  store_->ForEach([](const std::string&, FakeRemoteStore::Bundle& bundle) {
    bundle.stripes[0][bundle.stripes[0].size() / 2] ^= 1;
    return true;
  });
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 96u);
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 0u);
  EXPECT_TRUE(Reaches("remote.bad.bytes", 6));
}

TEST_F(FarTest, R5ARecordThatWasChangedIsAMissAndCounted) {
  OpenHost();
  StoreAndWrite(tokens_);
  store_->ForEach([](const std::string&, FakeRemoteStore::Bundle& bundle) {
    bundle.record.back() ^= 1;
    return true;
  });
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 0u);
  EXPECT_EQ(Counter("remote.bad.seal"), 1u);  // nothing behind it is looked at
}

TEST_F(FarTest, ABundleThatIsGoneCutsTheHitThere) {
  OpenHost();
  StoreAndWrite(tokens_);
  OpenHost();
  store_->Hold();
  EXPECT_EQ(Bring(tokens_), 96u);
  const cache::Acquired lease = Acquire(space_, tokens_);
  EXPECT_EQ(lease.match.restorable_tokens, 96u);
  EXPECT_GT(lease.match.remote_bytes, 0u);
  int left = 3;
  store_->ForEach([&left](const std::string&, FakeRemoteStore::Bundle&) { return left-- > 0; });
  store_->Release();
  EXPECT_LT(FetchAndCheck(identity_, lease, tokens_), 96u);
  EXPECT_TRUE(Reaches("remote.gone", 3));
}

TEST_F(FarTest, WhoeverAsksMeanwhileWaitsForTheSamePages) {
  OpenHost();
  StoreAndWrite(tokens_);
  OpenHost();
  store_->Hold();
  EXPECT_EQ(Bring(tokens_), 96u);
  const cache::Acquired first = Acquire(space_, tokens_);
  const cache::Acquired second = Acquire(space_, tokens_);
  EXPECT_EQ(second.match.restorable_tokens, 96u);
  store_->Release();
  EXPECT_EQ(FetchAndCheck(identity_, second, tokens_), 96u);
  EXPECT_EQ(FetchAndCheck(identity_, first, tokens_), 96u);
  EXPECT_EQ(store_->loads, 6u);
}

TEST_F(FarTest, R4AStoreThatIsDownIsAMissAndIsNotAskedForAWhile) {
  OpenHost();
  StoreAndWrite(tokens_);
  OpenHost();
  store_->down = true;
  EXPECT_EQ(Bring(tokens_), 0u);
  cache::Request request{
      .space = space_, .tokens = tokens_, .content = {}, .groups = {}, .readable = {}};
  EXPECT_TRUE(cache_->AcquireHere(session_, request, In(1000))->has_value());  // nobody is asked
  store_->down = false;
  clock_.Advance(100'001);
  EXPECT_FALSE(cache_->AcquireHere(session_, request, In(1000))->has_value());
  EXPECT_EQ(Bring(tokens_), 96u);
}

TEST_F(FarTest, ADownStoreLosesNoCommitAndIsWrittenToLater) {
  OpenHost();
  store_->down = true;
  StoreAndWrite(tokens_);
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 100u);
  EXPECT_GT(Counter("remote.not_written.failed"), 0u);
  store_->down = false;
  StoreAndWrite(RandomTokens(2, 64));
  StoreAndWrite(tokens_);  // as the next turn of a chat would
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 96u);
}

TEST_F(FarTest, WhatANeighbourIsComputingIsNotAskedFor) {
  OpenHost();
  StoreAndWrite(tokens_);
  OpenHost();
  const block::SessionId neighbour = SessionWith(identity_, "neighbour");
  const auto plan = cache_->Reserve(
      neighbour, {.space = space_, .tokens = tokens_, .content = {}, .groups = {}, .writable = {}});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(Bring(tokens_), 0u);
  EXPECT_EQ(store_->finds, 0u);
}

TEST_F(FarTest, LateAnswersAreMissesAndCounted) {
  OpenHost();
  StoreAndWrite(tokens_);
  OpenHost();
  store_->late = true;
  EXPECT_EQ(Bring(tokens_), 0u);
  EXPECT_EQ(Counter("remote.late"), 1u);  // nothing behind it is looked at
  EXPECT_EQ(Counter("remote.down"), 1u);
}

TEST_F(FarTest, WhatIsWrittenIsLetGoAfterwards) {
  OpenHost();
  StoreAndWrite(tokens_);
  EXPECT_EQ(store_->stores, 6u);
  EXPECT_EQ(cache_->GetStats().leased_bytes, 0u);
}

TEST_F(FarTest, WhatLoadsSlowerThanItIsComputedIsNotBrought) {
  identity_ = Qwen3Identity();  // 4 MB a block: 1.6 ms, while computing it takes 1.3
  const Tokens tokens = RandomTokens(3, 640);
  OpenHost(Roomy());
  StoreAndWrite(tokens);
  OpenHost(Roomy());
  EXPECT_EQ(Bring(tokens, 5e4), 0u);
  EXPECT_EQ(Counter("remote.lookups_found"), 1u);
  EXPECT_EQ(Counter("remote.not_worth_it"), 1u);
  EXPECT_EQ(Bring(tokens, 1e3), 640u);
}

TEST_F(FarTest, NobodyIsAskedForWhatIsComputedBeforeAServerAnswers) {
  OpenHost();
  EXPECT_EQ(Bring(tokens_, 1e9), 0u);
  EXPECT_EQ(store_->finds, 0u);
  EXPECT_EQ(Counter("remote.not_worth_it"), 1u);
}

TEST_F(FarTest, TheWriteBudgetPassesOverWhatIsOfferedOnceAndTakesWhatComesAgain) {
  cache::Options options = WithRemote();
  options.remote.write_bytes_per_s = 1;
  options.remote.write_window = std::chrono::seconds(1);
  options.remote.shallow_tokens = 0;
  OpenHost(options);
  StoreAndWrite(tokens_);
  EXPECT_EQ(store_->stores, 1u);  // the first block overdraws the budget
  EXPECT_EQ(Counter("remote.not_written.budget"), 1u);
  StoreAndWrite(tokens_);
  EXPECT_EQ(store_->stores, 2u);
}

TEST_F(FarTest, AShareOfWhatIsAskedForMayBeSpentFromTheStart) {
  cache::Options options = WithRemote();
  options.remote.write_share = 0.01;
  OpenHost(options);
  StoreAndWrite(tokens_);  // from what was saved up
  EXPECT_EQ(store_->stores, 6u);
}

TEST_F(FarTest, WhatIsRememberedOfTheStoreIsCountedAndBounded) {
  OpenHost();
  for (uint64_t seed = 0; seed < 3000; ++seed) EXPECT_EQ(Bring(RandomTokens(seed, 64)), 0u);
  uint64_t bytes = 0;
  for (const block::NamedCount& part : cache_->GetStats().ram_parts) {
    if (part.name == "remote") bytes = part.value;
  }
  EXPECT_GT(bytes, 10'000u);
  EXPECT_LT(bytes, (uint64_t{64} << 20) / 100);
}

TEST_F(FarTest, NoMoreIsBroughtThanALeaseMayHold) {
  identity_ = Qwen3Identity();
  const Tokens tokens = RandomTokens(3, 640);  // 40 MB
  OpenHost(Roomy());
  StoreAndWrite(tokens);
  OpenHost();
  const uint32_t brought = Bring(tokens);
  EXPECT_GT(brought, 0u);
  EXPECT_LT(brought, 640u);
  EXPECT_EQ(Acquire(space_, tokens).match.restorable_tokens, brought);
}

TEST_F(FarTest, WhatARequestWaitsForIsGivenUpAfterItsTime) {
  OpenHost();
  StoreAndWrite(tokens_);
  cache::Options options = WithRemote();
  options.remote.request_patience = std::chrono::milliseconds(0);
  OpenHost(options);
  EXPECT_EQ(Bring(tokens_), 96u);
  EXPECT_TRUE(Reaches("remote.late", 6));
  EXPECT_EQ(store_->loads, 0u);
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 0u);
}

TEST_F(FarTest, ParentsAreUsedNoEarlierThanWhatHangsFromThem) {
  OpenHost();
  StoreAndWrite(tokens_);
  EXPECT_EQ(store_->touched_last, 6u);
}

TEST_F(FarTest, AHitMarksItsBlocksAsUsedOnceAnHourParentsLast) {
  OpenHost();
  StoreAndWrite(tokens_);
  const remote::Namer namer(WithRemote().remote.keys, 0, Summary().id);
  const block::SequenceView first{{tokens_.data(), identity_.block_tokens}, {}};
  const uint64_t finds = store_->finds, touched = store_->touched;
  clock_.Advance(cache::Writer::kHitUs);
  EXPECT_EQ(Acquire(space_, tokens_).match.restorable_tokens, 100u);
  clock_.Advance(int64_t{3'601} * 1'000'000);
  EXPECT_EQ(Acquire(space_, tokens_).match.restorable_tokens, 100u);
  EXPECT_TRUE(Reaches("remote.touched", 6));
  EXPECT_EQ(store_->touched, touched + 6) << "the first hit was told before an hour was over";
  EXPECT_EQ(store_->last_touched_name(), remote::KeyOf(namer.Next({}, first), "0"));
  for (int hits = 0; hits < 20; ++hits) {
    clock_.Advance(cache::Writer::kHitUs);
    Acquire(space_, tokens_);
  }
  StoreAndWrite(RandomTokens(2, 100));  // the writer has done what was before
  EXPECT_EQ(Counter("remote.touched"), 6u);
  EXPECT_EQ(store_->finds, finds);
  EXPECT_EQ(store_->stores, 12u);
}

TEST_F(FarTest, WhatServersGaveUpIsWrittenAgainOnceThatIsSeen) {
  OpenHost();
  StoreAndWrite(tokens_);
  store_->ForEach([](const std::string&, FakeRemoteStore::Bundle&) { return false; });
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 0u);  // seen
  StoreAndWrite(tokens_);
  EXPECT_EQ(store_->size(), 6u);
}

TEST_F(FarTest, ABadBundleIsWrittenAgain) {
  OpenHost();
  StoreAndWrite(tokens_);
  store_->ForEach([](const std::string&, FakeRemoteStore::Bundle& bundle) {
    bundle.stripes[0][0] ^= 1;
    return true;
  });
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 96u);
  EXPECT_TRUE(Reaches("remote.bad.bytes", 6));
  StoreAndWrite(tokens_);
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 96u);
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 96u);
}

TEST_F(FarTest, APrefetchBringsToo) {
  OpenHost();
  StoreAndWrite(tokens_);
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 96u);
  cache::Request request{
      .space = space_, .tokens = tokens_, .content = {}, .groups = {}, .readable = {}};
  EXPECT_EQ(cache_->Prefetch(session_, request)->restorable_tokens, 96u);
}

TEST_F(FarTest, PagesOnTheirWayDoNotKeepTheCacheFromClosing) {
  OpenHost();
  StoreAndWrite(tokens_);
  OpenHost();
  store_->Hold();
  EXPECT_EQ(Bring(tokens_), 96u);
  std::thread closing([this] { cache_.reset(); });
  store_->Release();
  closing.join();
}

}  // namespace
}  // namespace prefixd::testing
