// The key of block hashes through the lives of a cache: what it made is read as long as it is
// known, and nobody who maps the arena learns it.
#include "cache/hash_key.h"

#include <fstream>
#include <iterator>

#include "base/secret_file.h"
#include "tests/cache/shared_fixture.h"

namespace prefixd::testing {
namespace {

class HashKeyTest : public SharedCacheTest {
 protected:
  cache::Options WithLog(cache::Options options) {
    options.directory = dir_.path() + "/ssd";
    options.log = [this](cache::LogLevel, const std::string& line) { log_ += line + "\n"; };
    return options;
  }
  std::string StoreOne() {
    EXPECT_TRUE(Store(identity_, OpenSpace(identity_), tokens_).ok());
    return {};
  }
  uint32_t Found() { return ReadBack(identity_, OpenSpace(identity_), tokens_); }
  std::string StoreKey() const { return dir_.path() + "/ssd/prefixd.key"; }
  std::string ArenaKey() const { return arena_path_ + ".key"; }

  const block::SpaceIdentity identity_ = SmallIdentity();
  const Tokens tokens_ = RandomTokens(1, 100);
  std::string log_;
};

TEST_F(HashKeyTest, T1EveryCacheHasAKeyOfItsOwnBesideWhatItMade) {
  Open(WithLog(SharedWithSsd()));
  const auto key = base::ReadSecret(StoreKey()).value().value();
  EXPECT_EQ(base::ReadSecret(ArenaKey()).value().value(), key);
  cache_.reset();
  std::filesystem::remove_all(dir_.path() + "/ssd");
  std::filesystem::remove(ArenaKey());
  Open(WithLog(SharedWithSsd()));
  EXPECT_NE(base::ReadSecret(StoreKey()).value().value(), key);
}

TEST_F(HashKeyTest, T1TheArenaThatWorkersMapDoesNotHoldTheKey) {
  Open(WithLog(SharedWithSsd()));
  StoreOne();
  const auto key = base::ReadSecret(ArenaKey()).value().value();
  std::ifstream file(arena_path_, std::ios::binary);
  std::string head(4 << 20, '\0');  // header, tables and records
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  EXPECT_EQ(head.find(base::AsText(key)), std::string::npos);
  EXPECT_EQ(head.find(base::AsText(std::span(key).first(8))), std::string::npos);
}

TEST_F(HashKeyTest, TheArenaIsAdoptedWhenTheStoreIsLost) {
  LiveAndBeKilled(WithLog(SharedWithSsd()), [this] { return StoreOne(); });
  std::filesystem::remove_all(dir_.path() + "/ssd");
  Open(WithLog(SharedWithSsd()));
  EXPECT_EQ(Found(), 100u);
  EXPECT_EQ(base::ReadSecret(StoreKey()).value(), base::ReadSecret(ArenaKey()).value());
}

TEST_F(HashKeyTest, WithoutAStoreTheArenaKeepsTheKey) {
  LiveAndBeKilled(WithLog(Shared()), [this] { return StoreOne(); });
  Open(WithLog(Shared()));
  EXPECT_EQ(Found(), 100u);
}

TEST_F(HashKeyTest, WhatIsMadeWithAKeyThatIsLostIsThrownAwayAndSaidSo) {
  LiveAndBeKilled(WithLog(SharedWithSsd()), [this] {
    StoreOne();
    cache_->Flush(In(20000));
    return std::string();
  });
  std::ofstream(StoreKey(), std::ios::trunc) << "damaged";
  std::filesystem::remove(ArenaKey());
  Open(WithLog(SharedWithSsd()));
  EXPECT_EQ(Found(), 0u);
  EXPECT_NE(log_.find("prefixd.key is not a secret of prefixd, or is damaged"), std::string::npos);
  EXPECT_NE(log_.find("made with another key"), std::string::npos);
  EXPECT_EQ(Counter("ssd.reclaimed"), 1u);
  EXPECT_EQ(Counter("arena.replaced"), 1u);
  StoreOne();
  EXPECT_EQ(Found(), 100u);
}

// Its owner can mend that; what is thrown away is gone.
TEST_F(HashKeyTest, T6AKeyThatMayNotBeUsedNowCostsNothingOfTheStore) {
  cache::Options options = WithLog(SharedWithSsd());
  options.arena_path.clear();
  Open(options);
  StoreOne();
  EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  cache_.reset();
  std::filesystem::permissions(StoreKey(), std::filesystem::perms(0644));
  Open(options);
  EXPECT_EQ(Found(), 0u);
  EXPECT_EQ(Counter("ssd.closed"), 1u);
  EXPECT_EQ(Counter("ssd.reclaimed"), 0u);
  EXPECT_NE(log_.find("may be read or written by others"), std::string::npos);
  cache_.reset();
  std::filesystem::permissions(StoreKey(), std::filesystem::perms(0600));
  Open(options);
  EXPECT_EQ(Found(), 100u);
}

}  // namespace
}  // namespace prefixd::testing
