// What a worker pins for its devices is told to the daemon, once for all devices, and to every
// later daemon of the same memory.
#include <algorithm>
#include <optional>

#include "tests/client/daemon.h"
#include "tests/client/packed_cache.h"

namespace prefixd {
namespace {

class DevicePinsTest : public testing::Test {
 protected:
  void SetUp() override {
    StartDaemon();
    client_.emplace(ClientOptions{.address = directory_.address()});
    space_ = client_->OpenSpace(spec_);
    ASSERT_TRUE(space_.ok()) << space_.status.message;
    const PackedCache cache(spec_, static_cast<uint32_t>(tokens_.size()), 1);
    ASSERT_TRUE(StorePacked(space_.value(), spec_, tokens_, cache).ok());
    view_ = View();
    ASSERT_NE(view_.tell, nullptr);
  }
  void StartDaemon() {
    daemon_.emplace(directory_.socket(), DaemonOptions{.arena = arena_.path()});
  }
  ArenaView View() {
    Lease lease = space_.value().Acquire(tokens_, {.deadline = std::chrono::seconds(20)});
    EXPECT_EQ(lease.WaitAll(), tokens_.size());
    return lease.arena().value_or(ArenaView());
  }
  bool Tell(uint64_t slab, uint64_t slabs, bool pinned) {
    return view_.tell(view_.teller, slab, slabs, pinned ? 1 : 0) == 1;
  }
  uint64_t PinnedSlabs() {
    for (const block::NamedCount& count : daemon_->cache().GetStats().counters) {
      if (count.name == "arena.device_pinned_bytes") return count.value / view_.slab_bytes;
    }
    return ~uint64_t{0};
  }

  TempDirectory directory_;
  ArenaPath arena_;
  std::optional<Daemon> daemon_;
  std::optional<Client> client_;
  SpaceSpec spec_ = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  Result<Space> space_;
  const std::vector<uint32_t> tokens_ = Tokens(300, 1);
  ArenaView view_;
};

TEST_F(DevicePinsTest, TheDaemonKnowsWhatIsPinnedByAnyDevice) {
  EXPECT_EQ(PinnedSlabs(), 0u);
  EXPECT_TRUE(Tell(0, 1, true));
  EXPECT_EQ(PinnedSlabs(), 1u);
  EXPECT_TRUE(Tell(2, 9, true));
  EXPECT_EQ(PinnedSlabs(), 10u);
  EXPECT_TRUE(Tell(2, 1, true)) << "by another device too";
  EXPECT_TRUE(Tell(2, 9, false));
  EXPECT_EQ(PinnedSlabs(), 2u) << "0, and 2 by the other device";
  EXPECT_TRUE(Tell(2, 1, false));
  EXPECT_TRUE(Tell(0, 1, false));
  EXPECT_EQ(PinnedSlabs(), 0u);
}

TEST_F(DevicePinsTest, SlabsBeyondTheMemoryAreNotPins) {
  const uint64_t slabs = view_.bytes / view_.slab_bytes;
  EXPECT_FALSE(Tell(slabs, 1, true));
  EXPECT_FALSE(Tell(1, ~uint64_t{0}, true));
  EXPECT_TRUE(Tell(slabs - 1, 1, true));
  EXPECT_TRUE(Tell(5, 1, false)) << "not pinned, so nothing changes";
  EXPECT_EQ(PinnedSlabs(), 1u);
}

TEST_F(DevicePinsTest, ADaemonThatComesBackIsToldBeforeAnythingElse) {
  EXPECT_TRUE(Tell(1, 3, true));
  for (const uint64_t unpinned : {0u, 1u}) {
    daemon_.reset();
    EXPECT_EQ(Tell(1, unpinned, false), unpinned == 0) << "nobody is there to be told";
    StartDaemon();
    ASSERT_TRUE(client_->WaitAttached(std::chrono::seconds(20)));
    ASSERT_EQ(View().base, view_.base) << "it adopted the memory";
    EXPECT_EQ(PinnedSlabs(), 3 - unpinned);
  }
  EXPECT_TRUE(Tell(0, 0, false)) << "it knows all";
}

TEST_F(DevicePinsTest, WhatIsPinnedOfTheMemoryOfADaemonThatIsGoneIsNotThatOfTheNext) {
  EXPECT_TRUE(Tell(1, 3, true));
  daemon_.reset();
  std::filesystem::remove(arena_.path());
  StartDaemon();
  const PackedCache cache(spec_, static_cast<uint32_t>(tokens_.size()), 1);
  ASSERT_TRUE(client_->WaitAttached(std::chrono::seconds(20)));
  ASSERT_TRUE(StorePacked(space_.value(), spec_, tokens_, cache).ok());
  EXPECT_NE(View().teller, view_.teller);
  EXPECT_EQ(PinnedSlabs(), 0u);
  Tell(1, 1, false);
  EXPECT_EQ(PinnedSlabs(), 0u);
}

TEST_F(DevicePinsTest, WhoUnpinsAfterTheClientIsGoneIsNotKeptWaiting) {
  EXPECT_TRUE(Tell(1, 3, true));
  space_ = {};
  client_.reset();
  EXPECT_TRUE(Tell(1, 3, false)) << "there is nobody to tell: do not try again";
}

}  // namespace
}  // namespace prefixd
