// The real prefixd, killed in the middle of what an engine with its own KV memory does: right bytes
// or a shorter match, and no error where tokens are restored (G4).
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <list>
#include <random>

#include "block/arena_file.h"
#include "tests/client/packed_cache.h"
#include "tests/e2e/fixture.h"

namespace prefixd {
namespace {

using std::chrono::milliseconds;

class KilledDaemonTest : public prefixd::testing::EndToEndTest {
 protected:
  void Open(bool use_arena = true) {
    // The ones before stay: a lease must not outlive its client.
    client_ = &clients_.emplace_back(ClientOptions{.address = address(), .use_arena = use_arena});
    ASSERT_TRUE(client_->WaitAttached(milliseconds(20'000)));
    space_ = client_->OpenSpace(spec_);
    ASSERT_TRUE(space_.ok()) << space_.status.message;
  }
  void Kill() {
    daemon_->Signal(SIGKILL);
    daemon_->Wait();
  }
  void Store() {
    const Result<CommitInfo> stored = StorePacked(space_.value(), spec_, tokens_, cache_);
    ASSERT_TRUE(stored.ok()) << stored.status.message;
  }
  // Of a client that attached anew.
  Lease AcquireAgain(bool use_arena = true) {
    Open(use_arena);
    return space_.value().Acquire(tokens_, {.deadline = milliseconds(20'000)});
  }
  void ExpectRight(Lease& lease, uint32_t tokens) {
    if (tokens == 0) return;
    EXPECT_TRUE(PackedCache::Gathered(lease, spec_, tokens) == cache_.Cut(tokens)) << tokens;
  }

  const SpaceSpec spec_ = SmallSpace(MlxAffine(8, 64, 4, 32, Dtype::kBf16));
  const std::vector<uint32_t> tokens_ = Tokens(300, 1);
  const PackedCache cache_{spec_, 300, 7};
  std::list<Client> clients_;
  Client* client_ = nullptr;  // the last of them
  Result<Space> space_;
};

TEST_F(KilledDaemonTest, LeasedPagesStayReadableAndTheNextDaemonHasThemAgain) {
  StartDaemon();
  Open();
  Store();
  Lease lease = space_.value().Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), 300u);
  ASSERT_TRUE(lease.match().in_place) << client_->arena().why_not;
  Kill();
  ExpectRight(lease, 300);
  StartDaemon();
  Lease again = AcquireAgain();
  ASSERT_EQ(again.WaitAll(), 300u) << again.match().status.message;
  ExpectRight(again, 300);
  ExpectRight(lease, 300);
}

TEST_F(KilledDaemonTest, ALoadThatItDiesInIsShorterAndRight) {
  StartDaemon();
  Open();
  Store();
  for (int round = 0; round < 5; ++round) {
    Lease lease = AcquireAgain(/*use_arena=*/false);
    Kill();
    ExpectRight(lease, lease.WaitAll());
    StartDaemon();
  }
  Lease again = AcquireAgain(/*use_arena=*/false);
  ASSERT_EQ(again.WaitAll(), 300u);
  ExpectRight(again, 300);
}

TEST_F(KilledDaemonTest, APageDamagedWhileItWasDeadIsNotRestored) {
  StartDaemon();
  Open();
  Store();
  uint64_t place = 0;
  {
    Lease lease = space_.value().Acquire(tokens_);
    ASSERT_EQ(lease.WaitAll(), 300u);
    place = lease.block_table(1)[2].arena_offset;
  }
  Kill();
  const int fd = open(arena_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  uint64_t data = 0;
  std::byte byte{};
  ASSERT_EQ(pread(fd, &data, sizeof(data), offsetof(block::ArenaHeader, data_offset)), 8);
  ASSERT_EQ(pread(fd, &byte, 1, static_cast<off_t>(data + place)), 1);
  byte ^= std::byte{1};
  ASSERT_EQ(pwrite(fd, &byte, 1, static_cast<off_t>(data + place)), 1);
  close(fd);
  StartDaemon();
  Lease lease = AcquireAgain();
  ASSERT_EQ(lease.WaitAll(), 128u);
  ExpectRight(lease, 128);
  Store();  // heals it
  Lease healed = space_.value().Acquire(tokens_);
  ASSERT_EQ(healed.WaitAll(), 300u);
  ExpectRight(healed, 300);
}

TEST_F(KilledDaemonTest, CyclesThroughItsDeathsGiveRightBytesOrFewer) {
  StartDaemon();
  Open();
  std::mt19937 random(4);
  int kills = 0, hits = 0;
  const auto maybe_kill = [&] {
    if (random() % 16 != 0) return;
    Kill();
    StartDaemon();
    ++kills;
  };
  // The figure is 1,000; the tests run fewer.
  const char* cycles = std::getenv("PREFIXD_LEASE_CYCLES");
  for (int cycle = 0; cycle < (cycles != nullptr ? std::atoi(cycles) : 60); ++cycle) {
    Lease lease = space_.value().Acquire(tokens_);
    maybe_kill();
    const uint32_t restored = lease.WaitAll();
    maybe_kill();
    ExpectRight(lease, restored);
    lease.Release();
    hits += restored > 0 ? 1 : 0;
    if (restored == 300) continue;
    Plan plan = space_.value().Reserve(tokens_);
    for (const TokenRun run : plan.missing()) {
      WriteRun(plan, spec_, cache_, run);
      maybe_kill();
      if (!plan.Commit(run.end).ok()) break;
    }
    plan.Commit(300, {.sequence_end = true});
  }
  EXPECT_GT(kills, 2);
  EXPECT_GT(hits, kills) << "most cycles find it";
  AcquireAgain().WaitAll();
  Store();
  Lease last = space_.value().Acquire(tokens_);
  ASSERT_EQ(last.WaitAll(), 300u);
  ExpectRight(last, 300);
}

}  // namespace
}  // namespace prefixd
