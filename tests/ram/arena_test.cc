#include "ram/arena.h"

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/ram/shared_arena.h"

namespace prefixd::ram {
namespace {

using block::Extent;
using testing::HasSubstr;

std::unique_ptr<Arena> MakeArena(uint64_t capacity_bytes, uint64_t slab_bytes) {
  return Arena::Open({.capacity_bytes = capacity_bytes, .slab_bytes = slab_bytes}).value();
}

// Allocates extents of `bytes` until there is no room.
std::vector<Extent> Fill(Arena& arena, uint64_t bytes) {
  std::vector<Extent> extents;
  while (true) {
    const absl::StatusOr<Extent> extent = arena.Allocate(bytes, bytes);
    if (!extent.ok()) return extents;
    extents.push_back(*extent);
  }
}

TEST(ArenaTest, AnExtentIsTheSmallestOfFullHalfAndQuarterThatHoldsThePage) {
  const auto arena = MakeArena(4 * kMiB, kMiB);
  EXPECT_EQ(arena->ExtentBytes(kMiB, kMiB), kMiB);
  EXPECT_EQ(arena->ExtentBytes(kMiB / 2 + 1, kMiB), kMiB);
  EXPECT_EQ(arena->ExtentBytes(kMiB / 2, kMiB), kMiB / 2);
  EXPECT_EQ(arena->ExtentBytes(kMiB / 4 + 1, kMiB), kMiB / 2);
  EXPECT_EQ(arena->ExtentBytes(kMiB / 4, kMiB), kMiB / 4);
  EXPECT_EQ(arena->ExtentBytes(1, kMiB), kMiB / 4);
  EXPECT_EQ(arena->ExtentBytes(1, 1), 4 * kKiB);
  EXPECT_EQ(arena->ExtentBytes(139264, 139264), 136 * kKiB);
  EXPECT_EQ(arena->ExtentBytes(17 * kKiB, 68 * kKiB), 20 * kKiB) << "units of 4 KiB";
  EXPECT_EQ(arena->ExtentBytes(1, kMiB + 1), 0u) << "no extent crosses a slab";
}

TEST(ArenaTest, TheDefaultSlabIsASixtyFourthOfTheCapacityAndMoreOfASmallOne) {
  const auto slab_of = [](uint64_t capacity_bytes) {
    return MakeArena(capacity_bytes, 0)->stats().slab_bytes;
  };
  EXPECT_EQ(slab_of(kMiB), kMiB);
  EXPECT_EQ(slab_of(64 * kMiB), 4 * kMiB);
  EXPECT_EQ(slab_of(256 * kMiB), 8 * kMiB);
  EXPECT_EQ(slab_of(1024 * kMiB), 16 * kMiB);
  EXPECT_EQ(slab_of(uint64_t{64} << 30), 64 * kMiB);
}

TEST(ArenaTest, OpenRefusesSizesThatCannotWorkAndSaysWhy) {
  const auto status = [](uint64_t capacity_bytes, uint64_t slab_bytes) {
    return Arena::Open({.capacity_bytes = capacity_bytes, .slab_bytes = slab_bytes}).status();
  };
  EXPECT_EQ(
      status(64 * kKiB - 1, 0),
      absl::InvalidArgumentError("arena: capacity is 65535 bytes, one slab takes at least 65536"));
  EXPECT_TRUE(absl::IsInvalidArgument(status(kMiB, 2 * kMiB)));
  EXPECT_TRUE(absl::IsInvalidArgument(status(kMiB, 32 * kKiB)));
  EXPECT_TRUE(absl::IsInvalidArgument(status(kMiB, 100'000)));
  const absl::Status refused = status(uint64_t{1} << 60, 0);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the kernel refuses a mapping of"));
}

TEST(ArenaTest, AllocateWhenFullSaysHowMuchIsInUse) {
  const auto arena = MakeArena(2 * kMiB, kMiB);
  EXPECT_EQ(Fill(*arena, 512 * kKiB).size(), 4u);
  EXPECT_EQ(arena->Allocate(kMiB, kMiB).status(),
            absl::ResourceExhaustedError("arena: no room for an extent of 1.0 MiB: 2.0 MiB of 2.0 "
                                         "MiB in use by 4 extents, 0 of 2 slabs serve this size"));
  EXPECT_TRUE(absl::IsInvalidArgument(arena->Allocate(1, kMiB + 1).status()));
}

TEST(ArenaTest, AnEmptiedSlabServesAnotherSize) {
  const auto arena = MakeArena(2 * kMiB, kMiB);
  std::vector<Extent> extents = Fill(*arena, 256 * kKiB);
  ASSERT_EQ(extents.size(), 8u);
  // Empty the second slab but for one extent: a full page still finds no room.
  for (size_t i = 4; i < 7; ++i) arena->Free(extents[i]);
  EXPECT_TRUE(absl::IsResourceExhausted(arena->Allocate(kMiB, kMiB).status()));
  arena->Free(extents[7]);
  const absl::StatusOr<Extent> page = arena->Allocate(kMiB, kMiB);
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(*page, (Extent{.offset = kMiB, .bytes = kMiB}));
}

TEST(ArenaTest, ASmallPageFindsPlaceInTheSmallestLargerClassThatIsOpen) {
  const auto arena = MakeArena(3 * kMiB, kMiB);
  EXPECT_EQ(arena->AllocateLarger(4 * kKiB), std::nullopt);  // nothing is cut yet
  const Extent large = *arena->Allocate(512 * kKiB, 512 * kKiB);
  const Extent middle = *arena->Allocate(256 * kKiB, 256 * kKiB);
  const Extent small = *arena->Allocate(8 * kKiB, 8 * kKiB);
  const std::optional<Extent> page = arena->AllocateLarger(12 * kKiB);
  ASSERT_TRUE(page.has_value());
  EXPECT_EQ(page->bytes, middle.bytes);
  EXPECT_EQ(page->offset / kMiB, middle.offset / kMiB);
  EXPECT_EQ(arena->AllocateLarger(kMiB), std::nullopt);
  for (Extent extent : {large, middle, small, *page}) arena->Free(extent);
  EXPECT_EQ(arena->stats().slabs_free, 3u);
}

TEST(ArenaTest, TheCheapestSlabToEmptyHoldsTheFewestBytesOfAnotherSize) {
  const auto arena = MakeArena(3 * kMiB, kMiB);
  EXPECT_EQ(arena->CheapestSlabToEmpty(4 * kKiB), std::nullopt);
  std::vector<Extent> quarters = Fill(*arena, 256 * kKiB);
  EXPECT_EQ(arena->CheapestSlabToEmpty(256 * kKiB), std::nullopt);
  arena->Free(quarters[1]);
  arena->Free(quarters[9]);
  arena->Free(quarters[10]);
  const std::optional<SlabRange> cheapest = arena->CheapestSlabToEmpty(kMiB);
  ASSERT_TRUE(cheapest.has_value());
  EXPECT_EQ(cheapest->begin, 2 * kMiB);
  EXPECT_EQ(cheapest->end, 3 * kMiB);
  EXPECT_EQ(cheapest->extent_bytes, 512 * kKiB);
  const std::vector<uint64_t> spared = {0, 0, 1};
  EXPECT_EQ(arena->CheapestSlabToEmpty(kMiB, spared)->begin, 0u);
  const std::vector<uint64_t> all_spared = {3, 2, 3};
  EXPECT_EQ(arena->CheapestSlabToEmpty(kMiB, all_spared)->begin, kMiB) << "none is ruled out";
}

TEST(ArenaTest, APrivateArenaNeverAsksToBePopulated) {
  const auto arena = MakeArena(2 * kMiB, kMiB);
  Fill(*arena, 4 * kKiB);
  EXPECT_FALSE(arena->wants_populating());
  EXPECT_FALSE(arena->PopulateAhead());
}

TEST(ArenaTest, TheNewestFreedExtentIsReusedFirst) {
  const auto arena = MakeArena(kMiB, kMiB);
  const std::vector<Extent> extents = Fill(*arena, 64 * kKiB);
  arena->Free(extents[3]);
  arena->Free(extents[11]);
  EXPECT_EQ(arena->Allocate(64 * kKiB, 64 * kKiB).value(), extents[11]);
}

TEST(ArenaDeathTest, FreeingWhatIsNotAllocatedIsOurBug) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto arena = MakeArena(kMiB, kMiB);
  const Extent extent = arena->Allocate(64 * kKiB, 64 * kKiB).value();
  const Extent kept = arena->Allocate(64 * kKiB, 64 * kKiB).value();
  arena->Free(extent);
  EXPECT_DEATH(arena->Free(extent),
               "arena: double free, or use after free: extent at offset 0 of 65536 bytes");
  EXPECT_DEATH(arena->Free({.offset = kMiB, .bytes = 64 * kKiB}), "outside the arena");
  EXPECT_DEATH(arena->Free({.offset = kept.offset, .bytes = 4 * kKiB}), "never given out");
  EXPECT_DEATH(arena->Free({.offset = kept.offset + 4 * kKiB, .bytes = kept.bytes}),
               "never given out");
  EXPECT_DEATH(arena->Free({}), "never given out");
  EXPECT_DEATH((void)arena->Allocate(2, 1), "page empty or above the full page");
  EXPECT_DEATH((void)arena->Allocate(0, 1), "page empty or above the full page");
}

// Random operations against a plain map of what is allocated.
class ArenaModel {
 public:
  ArenaModel(Arena& arena, uint64_t seed) : arena_(arena), random_(seed) {}

  void Step() {
    if (random_() % 5 < 3) {
      Allocate();
    } else if (!live_.empty()) {
      FreeOne();
    }
    ASSERT_EQ(arena_.stats().extent_bytes, bytes_);
    ASSERT_EQ(arena_.stats().extents, live_.size());
  }
  void FreeAll() {
    while (!live_.empty()) FreeOne();
  }
  uint64_t refused() const { return refused_; }

 private:
  void Allocate() {
    static constexpr uint64_t kFull[] = {5'000, 64 * kKiB, 139'264, 200'000, 256 * kKiB};
    const uint64_t full = kFull[random_() % std::size(kFull)];
    const uint64_t page = 1 + random_() % full;
    const absl::StatusOr<Extent> extent = arena_.Allocate(page, full);
    if (!extent.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(extent.status()));
      ++refused_;
      return;
    }
    CheckPlace(*extent, page);
    // The bytes are ours: a mark at both ends stays until the extent is freed.
    const uint64_t mark = random_();
    Mark(*extent, mark);
    live_[extent->offset] = {*extent, mark};
    bytes_ += extent->bytes;
  }
  void CheckPlace(Extent extent, uint64_t page) {
    const ArenaStats stats = arena_.stats();
    ASSERT_GE(extent.bytes, page);
    ASSERT_EQ(extent.offset % 4096, 0u);
    ASSERT_EQ(extent.bytes % 4096, 0u);
    ASSERT_LE(extent.offset + extent.bytes, stats.capacity_bytes);
    ASSERT_EQ(extent.offset / stats.slab_bytes,
              (extent.offset + extent.bytes - 1) / stats.slab_bytes);
    const auto next = live_.lower_bound(extent.offset);
    ASSERT_TRUE(next == live_.end() || extent.offset + extent.bytes <= next->first);
    if (next == live_.begin()) return;
    const Extent before = std::prev(next)->second.extent;
    ASSERT_LE(before.offset + before.bytes, extent.offset);
  }
  void Mark(Extent extent, uint64_t mark) {
    std::memcpy(arena_.data(extent), &mark, sizeof(mark));
    std::memcpy(arena_.data(extent) + extent.bytes - sizeof(mark), &mark, sizeof(mark));
  }
  void FreeOne() {
    auto victim = live_.lower_bound(random_() % arena_.stats().capacity_bytes);
    if (victim == live_.end()) victim = live_.begin();
    const auto [extent, mark] = victim->second;
    uint64_t front = 0, back = 0;
    std::memcpy(&front, arena_.data(extent), sizeof(front));
    std::memcpy(&back, arena_.data(extent) + extent.bytes - sizeof(back), sizeof(back));
    ASSERT_EQ(front, mark);
    ASSERT_EQ(back, mark);
    live_.erase(victim);
    bytes_ -= extent.bytes;
    arena_.Free(extent);
  }

  struct Live {
    Extent extent;
    uint64_t mark = 0;
  };
  Arena& arena_;
  std::mt19937_64 random_;
  std::map<uint64_t, Live> live_;  // by offset
  uint64_t bytes_ = 0, refused_ = 0;
};

TEST(ArenaModelTest, RandomOperationsNeverOverlapNorExceedTheCapacity) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const auto arena = MakeArena(8 * kMiB, 512 * kKiB);
    ArenaModel model(*arena, seed);
    for (int i = 0; i < 50'000; ++i) {
      model.Step();
      if (HasFatalFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
    EXPECT_GT(model.refused(), 0u) << "the arena was never full: the test proves nothing";
    model.FreeAll();
    const ArenaStats stats = arena->stats();
    EXPECT_EQ(stats.slabs_free, 16u);
    EXPECT_EQ(stats.slabs_in_use, 0u);
    EXPECT_EQ(stats.extent_bytes, 0u);
    EXPECT_EQ(Fill(*arena, 512 * kKiB).size(), 16u);
  }
}

// One thread's share of the race: fills extents with its own mark and finds it again.
void AllocateAndFree(Arena& arena, uint64_t seed, bool* intact) {
  std::mt19937_64 random(seed);
  std::vector<Extent> mine;
  *intact = true;
  for (int i = 0; i < 4'000; ++i) {
    const absl::StatusOr<Extent> extent = arena.Allocate(1 + random() % (64 * kKiB), 64 * kKiB);
    if (extent.ok()) {
      std::memset(arena.data(*extent), static_cast<int>(seed), 64);
      mine.push_back(*extent);
    }
    (void)arena.CheapestSlabToEmpty(64 * kKiB);
    while (mine.size() > 40 || (!extent.ok() && !mine.empty())) {
      std::swap(mine[random() % mine.size()], mine.back());
      *intact = *intact && arena.data(mine.back())[63] == static_cast<std::byte>(seed);
      arena.Free(mine.back());
      mine.pop_back();
    }
  }
  for (const Extent extent : mine) arena.Free(extent);
}

TEST(ArenaModelTest, ThreadsShareTheArenaWithoutSharingBytes) {
  const auto arena = MakeArena(2 * kMiB, 256 * kKiB);
  bool intact[4] = {};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { AllocateAndFree(*arena, i + 1, &intact[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool ok : intact) EXPECT_TRUE(ok);
  EXPECT_EQ(arena->stats().slabs_free, 8u);
}

}  // namespace
}  // namespace prefixd::ram
