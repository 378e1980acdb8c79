// Clears that all hosts hear, and those that no server heard yet.
#include <filesystem>
#include <fstream>

#include "tests/cache/far_fixture.h"

namespace prefixd::testing {
namespace {

using ::testing::HasSubstr;

class FarClearTest : public FarTest {};

TEST_F(FarClearTest, AClearIsHeardByAllHosts) {
  OpenHost();
  StoreAndWrite(tokens_);
  EXPECT_FALSE(cache_->Clear(nullptr)->remote_waits);
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 0u);
  StoreAndWrite(tokens_);  // stored anew, it is found
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 96u);
}

TEST_F(FarClearTest, AClearWhileOthersAreAskedGoesFirst) {
  OpenHost();
  StoreAndWrite(tokens_);
  OpenHost();
  store_->on_find = [this] { ASSERT_TRUE(cache_->Clear(nullptr).ok()); };
  EXPECT_EQ(Bring(tokens_), 0u);
  store_->on_find = nullptr;
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 0u);
}

TEST_F(FarClearTest, AClearThatTheStoreDidNotHearIsSaidAndKeepsWhatWasBeforeAway) {
  OpenHost();
  StoreAndWrite(tokens_);
  store_->down = true;
  EXPECT_TRUE(cache_->Clear(nullptr)->remote_waits);
  store_->down = false;
  clock_.Advance(1'000'000);
  EXPECT_EQ(Bring(tokens_), 0u);
}

TEST_F(FarClearTest, AClearThatTheStoreDidNotHearIsOwedByTheNextDaemon) {
  const auto with_ssd = [this](const std::string& tenant) {
    cache::Options options = WithRemote(tenant);
    options.ssd_budget_bytes = uint64_t{4} << 30;
    return options;
  };
  OpenHost(with_ssd("t"));
  StoreAndWrite(tokens_);
  store_->deaf = true;
  EXPECT_TRUE(cache_->Clear(nullptr)->remote_waits);
  const uint64_t stored = store_->stores;
  OpenHost(with_ssd("another"));  // has nothing to do with it, and leaves it for who has
  StoreAndWrite(RandomTokens(3, 100));
  EXPECT_GT(store_->stores, stored);
  OpenHost(with_ssd("t"));
  EXPECT_EQ(Bring(tokens_), 0u) << "nothing of before is used";
  store_->deaf = false;
  const base::Deadline deadline = In(20000);
  while (std::filesystem::exists(dir_.path() + "/ssd/prefixd.clears")) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  StoreAndWrite(RandomTokens(2, 100));
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 0u) << "other hosts heard it too";
  EXPECT_EQ(Bring(RandomTokens(2, 100)), 96u);
  OpenHost(with_ssd("t"));
  EXPECT_EQ(Bring(RandomTokens(2, 100)), 96u) << "it was owed once";
}

TEST_F(FarClearTest, AFileOfOwedClearsThatIsNoneIsToldAndIsAsNone) {
  cache::Options options = WithRemote();
  options.ssd_budget_bytes = uint64_t{4} << 30;
  OpenHost(options);
  StoreAndWrite(tokens_);
  cache_.reset();
  std::ofstream(dir_.path() + "/ssd/prefixd.clears") << "something else\n";
  std::filesystem::permissions(dir_.path() + "/ssd/prefixd.clears",
                               std::filesystem::perms::owner_all);
  std::string said;
  options.log = [&said](cache::LogLevel, const std::string& line) { said += line; };
  OpenHost(options);
  EXPECT_THAT(said, HasSubstr("prefixd.clears is not of this version"));
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 96u);
}

TEST_F(FarClearTest, AClearOfOneSpaceLeavesTheOthers) {
  OpenHost();
  StoreAndWrite(tokens_);
  const block::SpaceId cleared = Summary().id;
  identity_.salt = "b";
  space_ = OpenSpace(identity_);
  StoreAndWrite(tokens_);
  ASSERT_TRUE(cache_->Clear(&cleared).ok());
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 96u);
  identity_.salt = "";
  space_ = OpenSpace(identity_);
  EXPECT_EQ(Bring(tokens_), 0u);
}

TEST_F(FarClearTest, AHostThatSawAClearTellsAStoreThatLostIt) {
  OpenHost();
  StoreAndWrite(tokens_);
  ASSERT_TRUE(cache_->Clear(nullptr).ok());
  store_->ForgetNumbers();
  clock_.Advance(60'000'000);
  EXPECT_EQ(Bring(RandomTokens(2, 100)), 0u);
  EXPECT_EQ(Counter("remote.clears_put_back"), 1u);
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 0u) << "a host that starts later does not find what was cleared";
}

TEST_F(FarClearTest, AClearAfterTheStoreLostEarlierOnesIsAboveThem) {
  OpenHost();
  StoreAndWrite(tokens_);
  for (const int64_t clear : {1, 2, 3}) {
    ASSERT_TRUE(cache_->Clear(nullptr).ok()) << clear;
    StoreAndWrite(RandomTokens(static_cast<uint64_t>(clear) + 1, 100));
    store_->ForgetNumbers();
  }
  ASSERT_TRUE(cache_->Clear(nullptr).ok());
  OpenHost();
  for (const uint64_t seed : {1, 2, 3, 4}) EXPECT_EQ(Bring(RandomTokens(seed, 100)), 0u) << seed;
}

TEST_F(FarClearTest, AClearThatWaitsIsToldBeforeAnythingIsWritten) {
  OpenHost();
  StoreAndWrite(tokens_);
  store_->down = true;
  EXPECT_TRUE(cache_->Clear(nullptr)->remote_waits);
  store_->down = false;
  StoreAndWrite(tokens_);
  EXPECT_EQ(store_->stores, 12u);
  OpenHost();
  EXPECT_EQ(Bring(tokens_), 96u);
}

}  // namespace
}  // namespace prefixd::testing
