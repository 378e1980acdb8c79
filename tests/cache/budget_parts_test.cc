// What part of the RAM budget is pages, and what the index takes of it.
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "ram/arena.h"
#include "ram/budget.h"
#include "shared_fixture.h"

namespace prefixd::testing {
namespace {

constexpr const char* kNoRoom = "/dev/shm or the machine is too small for this budget";

// Blocks of 16 tokens in one page of 4 KiB, whose names take a twentieth of what the pages take.
block::SpaceIdentity TinyBlocks() {
  block::SpaceIdentity identity = SmallIdentity(16, 0);
  identity.model = "tiny";
  block::LayerGroup group;
  group.name = "all";
  group.layers = {0};
  group.kv_heads = 1;
  group.key_dim = group.value_dim = 64;
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF16);
  group.ladder = {{raw, raw}};
  identity.groups = {group};
  return identity;
}

class BudgetPartsTest : public SharedCacheTest {
 protected:
  uint64_t Part(const std::string& name) const {
    for (const block::NamedCount& part : cache_->GetStats().ram_parts) {
      if (part.name == name) return part.value;
    }
    return 0;
  }
  uint64_t PartsSum() const {
    uint64_t sum = 0;
    for (const block::NamedCount& part : cache_->GetStats().ram_parts) sum += part.value;
    return sum;
  }
  uint64_t Share(const std::string& name) const {
    for (const block::NamedCount& share : cache_->RamShares()) {
      if (share.name == name) return share.value;
    }
    return 0;
  }
  uint64_t SharesSum() const {
    uint64_t sum = 0;
    for (const block::NamedCount& share : cache_->RamShares()) sum += share.value;
    return sum;
  }
  // Stores as Store does, pages of zeros: their bytes are not looked at here. `lease`: keeps them
  // leased.
  absl::Status StoreZeros(const block::SpaceIdentity& identity, block::SpaceHandle space,
                          const Tokens& tokens, bool lease = false) {
    const auto plan = cache_->Reserve(
        session_, {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}});
    if (!plan.ok()) return plan.status();
    for (const block::BlockPlan& block : plan->blocks) {
      if (block.state == block::BlockState::kPresent) continue;
      for (uint32_t g = 0; g < identity.groups.size(); ++g) {
        const uint64_t bytes =
            block::LayoutOfPage(identity.groups[g], block.rungs[g], block.tokens).page_bytes;
        if (zeros_.size() != bytes) zeros_.assign(bytes, std::byte{});
        const absl::Status put = cache_->PutPage(session_, plan->reservation,
                                                 {.group = g,
                                                  .first_token = block.first_token,
                                                  .tokens = block.tokens,
                                                  .rung = block.rungs[g],
                                                  .page_bytes = bytes,
                                                  .offset = 0,
                                                  .xxh3 = base::Xxh3(zeros_),
                                                  .data = zeros_},
                                                 In(10000));
        if (!put.ok()) return put;
      }
    }
    return cache_
        ->Commit(session_, {.reservation = plan->reservation,
                            .tokens = static_cast<uint32_t>(tokens.size()),
                            .sequence_end = true,
                            .ends = {},
                            .lease = lease})
        .status();
  }
  // Stores sequences until so many more pages were evicted.
  void FillUntilEvicted(const block::SpaceIdentity& identity, uint32_t tokens, uint64_t evicted) {
    const block::SpaceHandle space = OpenSpace(identity);
    evicted += Counter("pages.evicted");
    while (Counter("pages.evicted") < evicted) {
      ASSERT_TRUE(StoreZeros(identity, space, RandomTokens(next_seed_++, tokens)).ok());
    }
  }
  // Requires: the index's share does not shrink meanwhile. The arena gives up what the index gets
  // before it gets it: neither has it twice.
  void CheckEveryPart(uint64_t budget) const {
    const uint64_t arena_may = Share("arena");
    const auto parts = cache_->GetStats().ram_parts;
    const uint64_t index_may = Share("index");
    uint64_t sum = 0, arena = 0, index = 0;
    for (const block::NamedCount& part : parts) {
      sum += part.value;
      if (part.name == "arena" || part.name == "arena tables") arena += part.value;
      if (part.name == "index") index = part.value;
    }
    EXPECT_LE(sum, budget);
    EXPECT_LE(arena, arena_may);
    EXPECT_LE(index, index_may);
    EXPECT_LE(SharesSum(), budget);
  }
  uint64_t Payload() const {
    uint64_t bytes = 0;
    for (const block::SpaceSummary& space : cache_->ListSpaces()) bytes += space.ram_payload_bytes;
    return bytes;
  }
  uint64_t Blocks() const {
    uint64_t blocks = 0;
    for (const block::SpaceSummary& space : cache_->ListSpaces()) blocks += space.blocks;
    return blocks;
  }
  // Whether an arena of such a budget fits into /dev/shm, and takes a third of the machine at most.
  static bool HasRoom(uint64_t budget) {
    struct statvfs at {};
    const auto machine = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return statvfs("/dev/shm", &at) == 0 && uint64_t{at.f_bavail} * at.f_frsize > budget &&
           machine / 3 > budget;
  }

  std::vector<std::byte> zeros_;
  uint64_t next_seed_ = 1;
};

// Calls `look` all the time on a thread of its own.
class Watch {
 public:
  template <typename Look>
  explicit Watch(Look look)
      : thread_([this, look] {
          for (; !stop_; ++looks_) look();
        }) {}
  ~Watch() { Stop(); }
  uint64_t Stop() {  // returns how often it looked
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return looks_;
  }

 private:
  std::atomic<bool> stop_{false};
  uint64_t looks_ = 0;
  std::thread thread_;  // the last: it begins at once
};

// Qwen3-0.6B in 8 bits: four pages of 952 KiB a block. Beside an SSD tier, which takes its part. A
// small machine fills 512 MiB, of which the parts of least size leave less. PREFIXD_P92_MIB:
// another budget.
TEST_F(BudgetPartsTest, P92PagesFillNinetyTwoPercentOfTheBudget) {
  const char* const mib = std::getenv("PREFIXD_P92_MIB");
  uint64_t budget = (mib == nullptr ? 2048 : std::strtoull(mib, nullptr, 10)) * kMiB;
  if (!HasRoom(budget)) budget = 512 * kMiB;
  if (!HasRoom(budget)) GTEST_SKIP() << kNoRoom;
  cache::Options options = SharedWithSsd(budget);
  options.ssd_budget_bytes = 256 * kMiB;
  options.ssd_write_share = 0.01;
  Open(options);
  FillUntilEvicted(Qwen3Identity(), 512, 64);
  if (HasFailure()) return;
  std::cout << "K and V: " << Payload() / kMiB << " of " << budget / kMiB << " MiB\n";
  const double least = budget < 1024 * kMiB ? 0.88 : 0.92;
  EXPECT_GE(static_cast<double>(Payload()), least * static_cast<double>(budget));
  EXPECT_LE(PartsSum(), budget);
}

TEST_F(BudgetPartsTest, TheIndexGrowsAndTheSumIsWithinTheBudgetAtEveryMoment) {
  const uint64_t budget = 192 * kMiB;
  if (!HasRoom(budget)) GTEST_SKIP() << kNoRoom;
  Open(Shared(budget));
  const uint64_t before = Share("index");
  Watch watch([&] { CheckEveryPart(budget); });
  FillUntilEvicted(TinyBlocks(), 4096, 10'000);
  EXPECT_GT(watch.Stop(), 10u);
  EXPECT_GT(Share("index"), before);
  EXPECT_LE(Share("index"), budget / 16);
  EXPECT_LE(Part("index"), Share("index"));
}

// With an index of a sixteenth from the start the arena had 432 MiB in slabs of 6 MiB, 57 of them
// beside their records and tables.
TEST_F(BudgetPartsTest, TinyBlocksFindAsManyPlacesAsWithAnIndexOfASixteenth) {
  const uint64_t budget = 512 * kMiB;
  if (!HasRoom(budget)) GTEST_SKIP() << kNoRoom;
  Open(Shared(budget));
  FillUntilEvicted(TinyBlocks(), 4096, 10'000);
  EXPECT_GE(Blocks(), 57 * 6 * kMiB / 4096);
  EXPECT_EQ(Counter("index.trimmed"), 0u);
}

TEST_F(BudgetPartsTest, WhatTheIndexNeedsNoMoreGoesBackToPagesASlabAMinute) {
  const uint64_t budget = 192 * kMiB;
  if (!HasRoom(budget)) GTEST_SKIP() << kNoRoom;
  for (const bool shared : {false, true}) {
    base::FakeClock clock;
    cache::Options options = shared ? Shared(budget) : RamOnly(budget);
    options.clock = &clock;
    Open(options);
    FillUntilEvicted(Qwen3Identity(), 512, 64);
    const uint64_t index = Share("index"), arena = Share("arena"), full = Part("arena");
    FillUntilEvicted(TinyBlocks(), 4096, 1000);
    const uint64_t grown = Share("index");
    ASSERT_GT(grown, index);
    ASSERT_EQ(Share("arena"), arena - (grown - index));
    ASSERT_TRUE(cache_->Clear(nullptr).ok());
    const auto store = [&] {
      return StoreZeros(Qwen3Identity(), OpenSpace(Qwen3Identity()),
                        RandomTokens(next_seed_++, 64));
    };
    ASSERT_TRUE(store().ok());
    EXPECT_EQ(Share("index"), grown) << "it may be needed again in a moment";
    for (int minute = 0; minute < 3; ++minute) {
      clock.Advance(60'000'000);
      ASSERT_TRUE(store().ok());
    }
    EXPECT_EQ(Share("index"), index);
    EXPECT_EQ(Share("arena"), arena);
    FillUntilEvicted(Qwen3Identity(), 512, 64);
    EXPECT_EQ(Part("arena"), full);
    cache_.reset();  // before its clock
  }
}

// What is leased cannot be moved: the index gets the slabs that nobody reads.
TEST_F(BudgetPartsTest, TheIndexGrowsBesideLeasedPages) {
  if (!HasRoom(192 * kMiB)) GTEST_SKIP() << kNoRoom;
  Open(Shared(192 * kMiB));
  const uint64_t before = Share("index");
  const block::SpaceHandle space = OpenSpace(TinyBlocks());
  for (uint64_t seed = 1000; seed < 1016; ++seed) {
    ASSERT_TRUE(StoreZeros(TinyBlocks(), space, RandomTokens(seed, 4096), /*lease=*/true).ok());
  }
  const uint64_t leased = cache_->GetStats().leased_bytes;
  EXPECT_EQ(leased, 16 * kMiB);
  FillUntilEvicted(TinyBlocks(), 4096, 5'000);
  EXPECT_GT(Share("index"), before + 4 * kMiB);
  EXPECT_EQ(cache_->GetStats().leased_bytes, leased);
}

// Nothing is stored meanwhile, and nobody asks for stats.
TEST_F(BudgetPartsTest, TheIndexGrowsForLeasesAlone) {
  Open(RamOnly(512 * kMiB));
  const uint64_t before = Share("index");
  const block::SpaceHandle space = OpenSpace(TinyBlocks());
  const Tokens tokens = RandomTokens(1, 160'000);
  ASSERT_TRUE(StoreZeros(TinyBlocks(), space, tokens).ok());
  ASSERT_EQ(Share("index"), before);
  const block::SessionId other = SessionWith(TinyBlocks(), "other");
  size_t shorter = 0;                        // leases of one length hold their pages together
  for (int lease = 0; lease < 5; ++lease) {  // of one session, the quota does not allow more
    for (const block::SessionId session : {session_, other}) {
      const Tokens wanted(tokens.begin(), tokens.end() - static_cast<ptrdiff_t>(64 * shorter++));
      const cache::Request request{
          .space = space, .tokens = wanted, .content = {}, .groups = {}, .readable = {}};
      const auto acquired = cache_->Acquire(session, request, In(5'000));
      ASSERT_TRUE(acquired.ok()) << acquired.status();
      ASSERT_EQ(acquired->match.restorable_tokens, wanted.size());
    }
  }
  EXPECT_GT(Share("index"), before);
}

TEST_F(BudgetPartsTest, TheIndexGrowsForLeasesOfSets) {
  Open(RamOnly(512 * kMiB));
  const uint64_t before = Share("index");
  const block::SpaceHandle space = OpenSpace(TinyBlocks());
  const Tokens tokens = RandomTokens(1, 160'000);
  ASSERT_TRUE(StoreZeros(TinyBlocks(), space, tokens).ok());
  std::vector<block::SessionId> sessions{session_};
  for (const char* const name : {"second", "third", "fourth"}) {
    sessions.push_back(SessionWith(TinyBlocks(), name));
  }
  size_t shorter = 0;  // leases of one length hold their pages together
  for (int set = 0; set < 3; ++set) {
    for (const block::SessionId session : sessions) {
      const Tokens wanted(tokens.begin(), tokens.end() - static_cast<ptrdiff_t>(64 * shorter++));
      const cache::Request request{
          .space = space, .tokens = wanted, .content = {}, .groups = {}, .readable = {}};
      const std::vector<cache::Request> both{request, request};
      const auto acquired = cache_->AcquireSet(session, both, In(5'000));
      ASSERT_TRUE(acquired.ok()) << acquired.status();
    }
  }
  EXPECT_GT(Share("index"), before);
}

// Announcements take memory of the index before a page arrives.
TEST_F(BudgetPartsTest, TheIndexGrowsForReservations) {
  Open(RamOnly(512 * kMiB));
  const uint64_t before = Share("index");
  const block::SpaceHandle space = OpenSpace(TinyBlocks());
  const Tokens tokens = RandomTokens(1, 400'000);
  const auto plan = cache_->Reserve(
      session_, {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GT(Share("index"), before);
  EXPECT_LE(Part("index"), Share("index"));
  EXPECT_LE(SharesSum(), 512 * kMiB);
}

// Each takes about 2 KiB. Without room the space that was used longest ago is closed.
TEST_F(BudgetPartsTest, TheIndexGrowsForSpaces) {
  Open(RamOnly(512 * kMiB));
  const uint64_t before = Share("index");
  for (int i = 0; i < 1500; ++i) {
    block::SpaceIdentity identity = TinyBlocks();
    identity.model = "model " + std::to_string(i);
    OpenSpace(identity);
  }
  EXPECT_EQ(cache_->ListSpaces().size(), 1500u);
  EXPECT_GT(Share("index"), before);
}

TEST_F(BudgetPartsTest, AnIndexThatHadGrownIsFoundAfterAKill) {
  const uint64_t budget = 192 * kMiB;
  if (!HasRoom(budget)) GTEST_SKIP() << kNoRoom;
  const std::string stored = LiveAndBeKilled(Shared(budget), [&] {
    FillUntilEvicted(TinyBlocks(), 4096, 1000);
    return std::to_string(Blocks());
  });
  const uint64_t before =
      ram::CutBudget(budget, /*has_ssd=*/false, /*shared_arena=*/true)->index_bytes;
  Open(Shared(budget));
  CheckEveryPart(budget);
  EXPECT_GT(Share("index"), before);
  EXPECT_EQ(std::to_string(Blocks()), stored);
  Watch watch([&] { CheckEveryPart(budget); });
  FillUntilEvicted(TinyBlocks(), 4096, 1000);
}

TEST_F(BudgetPartsTest, ASmallerBudgetTakesFromAnIndexThatHasGrown) {
  if (!HasRoom(192 * kMiB)) GTEST_SKIP() << kNoRoom;
  Open(Shared(192 * kMiB));
  FillUntilEvicted(TinyBlocks(), 4096, 1);
  ASSERT_TRUE(cache_->SetBudgets(96 * kMiB, 0).ok());
  EXPECT_TRUE(Until([this] {  // slabs run empty one after the other
    return Part("arena") + Part("arena tables") <= Share("arena");
  }));
  CheckEveryPart(96 * kMiB);
  EXPECT_LE(Share("index"), 6 * kMiB);
  for (uint64_t mib = 96; mib <= 108; mib += 2) {  // a slab has about 6 MiB
    ASSERT_TRUE(cache_->SetBudgets(mib * kMiB, 0).ok());
    FillUntilEvicted(TinyBlocks(), 4096, 1000);
    CheckEveryPart(mib * kMiB);
  }
  ASSERT_TRUE(cache_->SetBudgets(192 * kMiB, 0).ok());
  FillUntilEvicted(TinyBlocks(), 4096, 1000);
  CheckEveryPart(192 * kMiB);
}

}  // namespace
}  // namespace prefixd::testing
