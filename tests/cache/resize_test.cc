// Budgets that change while the cache is open, and gauges that say where every byte is.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "base/size.h"
#include "shared_fixture.h"

namespace prefixd::testing {
namespace {

using ::testing::HasSubstr;

class ResizeTest : public SharedCacheTest {
 protected:
  uint64_t PartsSum() {
    uint64_t sum = 0;
    for (const block::NamedCount& part : cache_->GetStats().ram_parts) sum += part.value;
    return sum;
  }
  uint64_t Part(const std::string& name) {
    for (const block::NamedCount& part : cache_->GetStats().ram_parts) {
      if (part.name == name) return part.value;
    }
    return 0;
  }
  // Memory of the arena's file, as the kernel counts it.
  uint64_t FileBytes() const {
    struct stat status = {};
    EXPECT_EQ(stat(arena_path_.c_str(), &status), 0);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  }
  void Fill(block::SpaceHandle space, uint64_t seed, int sequences) {
    for (int i = 0; i < sequences; ++i) {
      ASSERT_TRUE(Store(identity_, space, RandomTokens(seed + static_cast<uint64_t>(i), 256)).ok());
    }
  }
  const block::SpaceIdentity identity_ = Qwen3Identity();
};

TEST_F(ResizeTest, ASmallerRamBudgetGivesMemoryBackAndALargerOneTakesIt) {
  Open(Shared(uint64_t{128} << 20));
  const block::SpaceHandle space = OpenSpace(identity_);
  Fill(space, 1, 8);
  ASSERT_GT(FileBytes(), uint64_t{80} << 20);
  const auto smaller = cache_->SetBudgets(uint64_t{64} << 20, 0);
  ASSERT_TRUE(smaller.ok()) << smaller.status();
  EXPECT_EQ(smaller->ram_budget_bytes, uint64_t{64} << 20);
  EXPECT_TRUE(Until([&] { return PartsSum() <= uint64_t{64} << 20; })) << PartsSum();
  EXPECT_LE(FileBytes(), uint64_t{64} << 20);
  Fill(space, 100, 6);
  EXPECT_LE(PartsSum(), uint64_t{64} << 20);
  EXPECT_EQ(ReadBack(identity_, space, RandomTokens(105, 256)), 256u);
  ASSERT_TRUE(cache_->SetBudgets(uint64_t{128} << 20, 0).ok());
  Fill(space, 200, 8);
  EXPECT_GT(FileBytes(), uint64_t{80} << 20);
  EXPECT_LE(PartsSum(), uint64_t{128} << 20);
}

// Bits for the first slabs.
std::string FirstSlabs(uint64_t count) {
  std::string bits((count + 7) / 8, '\0');
  for (uint64_t i = 0; i < count; ++i) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << i % 8);
  return bits;
}

TEST_F(ResizeTest, WhatAWorkerHasPinnedForADeviceCountsUntilItIsUnpinned) {
  cache::Options options = Shared(uint64_t{128} << 20);
  options.unpin_within = std::chrono::hours(1);
  Open(options);
  Fill(OpenSpace(identity_), 1, 8);
  Attach(identity_);
  const uint64_t slabs = Counter("arena.slabs_in_service");
  ASSERT_TRUE(cache_->SetDevicePins(session_, FirstSlabs(slabs)).ok());
  EXPECT_GE(Counter("arena.device_pinned_bytes"), uint64_t{80} << 20);
  ASSERT_TRUE(cache_->SetBudgets(uint64_t{64} << 20, 0).ok());
  const auto awaited = [&] { return Counter("arena.device_awaited_bytes"); };
  EXPECT_TRUE(Until([&] { return awaited() >= uint64_t{16} << 20; })) << awaited();
  // The cache stops counting memory a moment before it gives it back.
  const auto counted = [&] { return Part("arena") + Part("arena tables"); };
  EXPECT_TRUE(Until([&] { return counted() >= FileBytes(); })) << "its memory is still there";
  const auto again = cache_->SetBudgets(uint64_t{64} << 20, 0);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_GT(again->awaited_bytes, 0u);
  EXPECT_GE(again->ram_over_bytes, again->awaited_bytes);
  ASSERT_EQ(cache_->ListSessions().size(), 2u);
  const auto of_session = [&] {
    uint64_t bytes = 0;
    for (const auto& session : cache_->ListSessions()) bytes += session.device_pinned_bytes;
    return bytes;
  };
  EXPECT_EQ(of_session(), Counter("arena.device_pinned_bytes"));
  // A session that ends has nothing pinned: it maps nothing either.
  cache_->EndSession(session_);
  EXPECT_TRUE(Until([&] { return PartsSum() <= uint64_t{64} << 20; })) << PartsSum();
  EXPECT_LE(FileBytes(), uint64_t{64} << 20);
  EXPECT_EQ(Counter("arena.device_pinned_bytes"), 0u);
}

TEST_F(ResizeTest, AWorkerThatDoesNotUnpinIsNamedAndWhatItKeepsIsTold) {
  cache::Options options = Shared(uint64_t{128} << 20);
  options.unpin_within = std::chrono::milliseconds(0);
  std::mutex mutex;
  std::string log;
  options.log = [&](cache::LogLevel, const std::string& line) {
    const std::lock_guard lock(mutex);
    log += line + "\n";
  };
  Open(options);
  Fill(OpenSpace(identity_), 1, 8);
  Attach(identity_);
  const uint64_t slabs = Counter("arena.slabs_in_service");
  ASSERT_TRUE(cache_->SetDevicePins(session_, FirstSlabs(slabs)).ok());
  ASSERT_TRUE(cache_->SetBudgets(uint64_t{64} << 20, 0).ok());
  EXPECT_TRUE(Until([&] { return PartsSum() <= uint64_t{64} << 20; })) << PartsSum();
  EXPECT_TRUE(Until([&] {
    const std::lock_guard lock(mutex);
    return log.find("worker \"maps\" (pid 0) did not unpin in time") != std::string::npos;
  })) << log;
  EXPECT_GE(Counter("arena.device_kept_bytes"), uint64_t{16} << 20);
  EXPECT_EQ(Counter("arena.device_pins_late"), 1u);
  cache_.reset();  // before what it logs to
}

TEST_F(ResizeTest, PinsOfNoSessionOfNoArenaOrOfNoSlabAreRefused) {
  Open(Shared(uint64_t{128} << 20));
  OpenSpace(identity_);
  EXPECT_TRUE(absl::IsNotFound(cache_->SetDevicePins({1}, "")));
  const absl::Status copies = cache_->SetDevicePins(session_, "");
  EXPECT_EQ(copies,
            absl::FailedPreconditionError("device_pins: the session does not map the arena"));
  Attach(identity_);
  EXPECT_TRUE(cache_->SetDevicePins(session_, FirstSlabs(20)).ok());
  const absl::Status beyond = cache_->SetDevicePins(session_, FirstSlabs(1 << 23));
  EXPECT_TRUE(absl::IsInvalidArgument(beyond)) << beyond;
  EXPECT_THAT(std::string(beyond.message()), HasSubstr("name slabs beyond the arena's "));
}

TEST_F(ResizeTest, WhatIsLeasedStaysWhereItIsUntilItIsReleased) {
  Open(Shared(uint64_t{128} << 20));
  const block::SpaceHandle space = OpenSpace(identity_);
  Fill(space, 1, 7);
  const Tokens last = RandomTokens(7, 256);
  const cache::Acquired held = Acquire(space, last);
  ASSERT_EQ(held.match.restorable_tokens, 256u);
  ASSERT_TRUE(cache_->SetBudgets(uint64_t{64} << 20, 0).ok());
  EXPECT_EQ(FetchAndCheck(identity_, held, last), 256u);
  ASSERT_TRUE(cache_->Release(session_, {.lease = held.lease}).ok());
  EXPECT_TRUE(Until([&] { return FileBytes() <= uint64_t{64} << 20; })) << FileBytes();
}

TEST_F(ResizeTest, TheGaugeIsWhatTheKernelCountsUnderChurn) {
  Open(SharedWithSsd(uint64_t{64} << 20));
  const block::SpaceHandle space = OpenSpace(identity_);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Fill(space, seed, 1);
    EXPECT_LE(PartsSum(), uint64_t{64} << 20);
  }
  // The slab thread may be at it: at rest they are equal.
  EXPECT_TRUE(Until([&] { return Part("arena") + Part("arena tables") == FileBytes(); }))
      << Part("arena") << " + " << Part("arena tables") << " said, " << FileBytes() << " taken";
}

TEST_F(ResizeTest, ASmallerSsdBudgetDropsTheOldestSegments) {
  cache::Options options = WithSsd();
  options.segment_bytes = uint64_t{4} << 20;
  Open(options);
  const block::SpaceHandle space = OpenSpace(identity_);
  Fill(space, 1, 6);
  ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  ASSERT_GT(cache_->GetStats().ssd_file_bytes, uint64_t{80} << 20);
  const auto smaller = cache_->SetBudgets(0, uint64_t{40} << 20);
  ASSERT_TRUE(smaller.ok()) << smaller.status();
  EXPECT_LE(smaller->ssd_file_bytes, uint64_t{40} << 20);
  EXPECT_EQ(cache_->GetStats().ssd_budget_bytes, uint64_t{40} << 20);
  EXPECT_EQ(ReadBack(identity_, space, RandomTokens(6, 256)), 256u);
}

TEST_F(ResizeTest, WhatCannotBeResizedIsSaid) {
  Open(RamOnly());
  EXPECT_EQ(cache_->SetBudgets(uint64_t{40} << 20, 0).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache_->SetBudgets(0, uint64_t{1} << 30).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Open(SharedWithSsd());
  const auto refusal = [this](uint64_t ram_bytes, uint64_t ssd_bytes) {
    const absl::Status status = cache_->SetBudgets(ram_bytes, ssd_bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  // What to do instead is said, both ways.
  EXPECT_THAT(refusal(1000, 0), HasSubstr("to go below that, start prefixd again with a smaller"));
  EXPECT_THAT(refusal(0, 1000), HasSubstr("too little"));
  // The largest that would be taken is named, and is.
  const std::string too_much = refusal(uint64_t{1} << 60, 0);
  EXPECT_THAT(too_much, HasSubstr("start prefixd again with that --ram"));
  const std::string before = "the most is ";
  const size_t begin = too_much.find(before) + before.size();
  const auto most = base::ParseSize(too_much.substr(begin, too_much.find(';') - begin));
  ASSERT_TRUE(most.ok()) << too_much;
  EXPECT_TRUE(cache_->SetBudgets(most->bytes, 0).ok());
  EXPECT_NE(refusal(most->bytes + most->bytes / 50, 0), "");
}

TEST_F(ResizeTest, TwoBudgetsAreSetBothOrNeither) {
  Open(SharedWithSsd(uint64_t{128} << 20));
  const block::Stats before = cache_->GetStats();
  EXPECT_EQ(cache_->SetBudgets(uint64_t{64} << 20, 1000).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache_->GetStats().ram_budget_bytes, before.ram_budget_bytes);
  EXPECT_EQ(cache_->GetStats().ssd_budget_bytes, before.ssd_budget_bytes);
}

TEST_F(ResizeTest, ATierNeverShrinksBelowTheFloorsOfItsSpaces) {
  Open(SharedWithSsd(uint64_t{128} << 20));
  OpenSpace(identity_);
  const block::Stats before = cache_->GetStats();
  const block::SpaceId id = block::IdOf(identity_);
  const uint64_t ssd_floor = before.ssd_budget_bytes / 2;
  ASSERT_TRUE(cache_
                  ->SetSpaceLimits(
                      id, {.ram_floor_bytes = uint64_t{50} << 20, .ssd_floor_bytes = ssd_floor})
                  .ok());
  EXPECT_EQ(cache_->SetBudgets(uint64_t{60} << 20, 0).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache_->SetBudgets(0, ssd_floor).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache_->GetStats().ram_budget_bytes, before.ram_budget_bytes);
  EXPECT_EQ(cache_->GetStats().ssd_budget_bytes, before.ssd_budget_bytes);
}

}  // namespace
}  // namespace prefixd::testing
