// Pins through the client: what is pinned stays until it is unpinned, whoever asks.
#include <thread>

#include "tests/client/daemon.h"
#include "tests/client/packed_cache.h"

namespace prefixd {
namespace {

using std::chrono::milliseconds;

class PinTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(space_.ok()) << space_.status.message;
    const PackedCache cache(spec_, 300, 7);
    ASSERT_TRUE(StorePacked(space_.value(), spec_, tokens_, cache).ok());
  }
  // More than all RAM, unused since.
  void PushOut() {
    const PackedCache cache(spec_, 300, 8);
    for (uint32_t i = 0; i < 400; ++i) {
      ASSERT_TRUE(StorePacked(space_.value(), spec_, Tokens(300, 100 + i), cache).ok());
    }
  }
  uint32_t Hit() {
    const Result<MatchInfo> match = space_.value().Match(tokens_);
    return match.ok() ? match.value().restorable_tokens : 0;
  }

  TempDirectory directory_;
  Daemon daemon_{directory_.socket(), {.ram_bytes = uint64_t{64} << 20}};
  Client client_{{.address = directory_.address(), .use_arena = false, .staging_bytes = 0}};
  const SpaceSpec spec_ = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  Result<Space> space_ = client_.OpenSpace(spec_);
  const std::vector<uint32_t> tokens_ = Tokens(300, 1);
};

TEST_F(PinTest, WhatIsPinnedStaysUntilItIsUnpinned) {
  const Result<PinInfo> pinned = space_.value().Pin(tokens_);
  ASSERT_TRUE(pinned.ok()) << pinned.status.message;
  EXPECT_EQ(pinned.value().tokens, 300u);
  EXPECT_GT(pinned.value().bytes, 0u);
  EXPECT_EQ(daemon_.cache().GetStats().pinned_bytes, pinned.value().bytes);
  const Result<uint64_t> unpinned = space_.value().Unpin(pinned.value().pin);
  ASSERT_TRUE(unpinned.ok()) << unpinned.status.message;
  EXPECT_EQ(unpinned.value(), pinned.value().bytes);
  EXPECT_EQ(daemon_.cache().GetStats().pinned_bytes, 0u);
  EXPECT_EQ(space_.value().Unpin(pinned.value().pin).status.code, StatusCode::kNotFound);
}

TEST_F(PinTest, EvictionPassesAPinBy) {
  ASSERT_TRUE(space_.value().Pin(tokens_).ok());
  PushOut();
  EXPECT_EQ(Hit(), 300u);
}

TEST_F(PinTest, APinEndsWithItsTime) {
  ASSERT_TRUE(space_.value().Pin(tokens_, milliseconds(1)).ok());
  PushOut();
  EXPECT_EQ(Hit(), 0u);
}

TEST_F(PinTest, NothingIsPinnedOfWhatIsNotCached) {
  const Result<PinInfo> pinned = space_.value().Pin(Tokens(300, 2));
  ASSERT_TRUE(pinned.ok()) << pinned.status.message;
  EXPECT_EQ(pinned.value().pin, 0u);
  EXPECT_EQ(pinned.value().tokens, 0u);
}

TEST(PinWithoutDaemonTest, ItSaysSoAtItsDeadline) {
  Client client(
      {.address = "unix:///nonexistent/prefixd.sock", .connect_deadline = milliseconds(1)});
  Result<Space> space = client.OpenSpace(SmallSpace(MlxAffine(8, 64, Dtype::kF16)));
  ASSERT_TRUE(space.ok());
  EXPECT_FALSE(space.value().Pin(Tokens(300, 1)).ok());
  EXPECT_FALSE(space.value().Unpin(7, milliseconds(10)).ok());
  EXPECT_EQ(Space().Pin(Tokens(3, 1)).status.code, StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace prefixd
