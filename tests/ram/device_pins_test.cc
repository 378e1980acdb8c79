// Slabs that workers have pinned for devices keep their memory until they are unpinned, and count
// until then.
#include <atomic>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "ram/shared_file.h"
#include "ram/unpin_patience.h"
#include "tests/ram/shared_arena.h"

namespace prefixd::ram {
namespace {

constexpr uint64_t kSlab = 256 * kKiB;
constexpr std::chrono::hours kForever{1};

Arena::Options PinOptions(const ArenaPath& path, std::chrono::milliseconds unpin_within) {
  Arena::Options options = SharedOptions(path);
  options.unpin_within = unpin_within;
  return options;
}

// Backs every slab; returns how many.
uint64_t BackAll(Arena& arena) {
  while (arena.BackOneMore()) {
  }
  return arena.stats().slabs_in_service;
}

std::vector<std::byte> Bits(const std::set<uint64_t>& slabs) {
  std::vector<std::byte> bits;
  for (const uint64_t slab : slabs) {
    bits.resize(std::max<size_t>(bits.size(), slab / 8 + 1));
    bits[slab / 8] |= std::byte{1} << static_cast<int>(slab % 8);
  }
  return bits;
}
std::set<uint64_t> FirstSlabs(uint64_t count) {
  std::set<uint64_t> slabs;
  for (uint64_t i = 0; i < count; ++i) slabs.insert(i);
  return slabs;
}

uint64_t Accounted(const Arena& arena) {
  const ArenaStats stats = arena.stats();
  return stats.slabs_in_service * stats.slab_bytes + stats.table_bytes +
         arena.device_pins().awaited_bytes;
}

// A worker with a device: pins what is in service, and unpins what left it.
class Follower {
 public:
  Follower(Arena* arena, uint32_t slot) : arena_(arena), slot_(slot), thread_([this] { Run(); }) {}
  ~Follower() {
    stop_ = true;
    thread_.join();
  }
  void Look() {
    std::set<uint64_t> in_service;
    const auto* const header = arena_->header();
    const auto* const slabs = reinterpret_cast<const block::SlabRecord*>(
        reinterpret_cast<const std::byte*>(header) + header->slabs_offset);
    for (uint64_t i = 0; i < header->slabs; ++i) {
      if (block::InService(slabs[i].service.load())) in_service.insert(i);
    }
    arena_->SetDevicePins(slot_, Bits(in_service));
    ++looks_;
  }
  void AwaitLook() const {
    for (const uint64_t before = looks_; looks_ < before + 2;) std::this_thread::yield();
  }

 private:
  void Run() {
    while (!stop_) {
      Look();
      std::this_thread::yield();
    }
  }
  Arena* const arena_;
  const uint32_t slot_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> looks_{0};
  std::thread thread_;
};

TEST(DevicePinsTest, ASlabThatLeavesKeepsItsMemoryAndCountsUntilTheLastWorkerHasUnpinnedIt) {
  const ArenaPath path;
  const auto arena = OpenOrDie(PinOptions(path, kForever));
  const uint64_t slabs = BackAll(*arena);
  arena->SetDevicePins(3, Bits(FirstSlabs(slabs)));
  arena->SetDevicePins(63, Bits({slabs - 1}));
  EXPECT_EQ(arena->device_pins().bytes, slabs * kSlab) << "each slab once";
  EXPECT_EQ(arena->device_pins().slot_bytes[63], kSlab);

  const uint64_t before = AllocatedBytes(*arena);
  ASSERT_TRUE(arena->Resize(4 * kMiB).ok());
  EXPECT_TRUE(arena->EndLeaving().waits);
  EXPECT_GE(AllocatedBytes(*arena), before - 31 * kKiB * 4) << "at most records lost memory";
  EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
  EXPECT_GT(arena->OverBytes(), 3 * kMiB) << "it is still there, so it is over the budget";
  const uint64_t leaving = arena->device_pins().awaited_bytes;
  EXPECT_EQ(leaving, (slabs - arena->stats().slabs_in_service) * kSlab);
  EXPECT_FALSE(arena->BackOneMore()) << "no slab comes before they left";

  arena->SetDevicePins(3, Bits(FirstSlabs(arena->stats().slabs_in_service)));
  EXPECT_EQ(arena->device_pins().awaited_bytes, kSlab) << "slot 63 has one";
  arena->SetDevicePins(63, {});
  EXPECT_EQ(arena->device_pins().awaited_bytes, 0u);
  EXPECT_EQ(arena->OverBytes(), 0u);
  EXPECT_LE(AllocatedBytes(*arena), 4 * kMiB);
  EXPECT_EQ(AllocatedBytes(*arena), Accounted(*arena));
  const Arena::Leaving left = arena->EndLeaving();
  EXPECT_FALSE(left.waits);
  EXPECT_EQ(left.late_slots, 0u);
}

TEST(DevicePinsTest, AWorkerThatDoesNotUnpinIsWaitedForOnceAndItsMemoryIsTold) {
  const ArenaPath path;
  const auto arena = OpenOrDie(PinOptions(path, std::chrono::milliseconds(0)));
  const uint64_t slabs = BackAll(*arena);
  arena->SetDevicePins(5, Bits(FirstSlabs(slabs)));
  ASSERT_TRUE(arena->Resize(7 * kMiB).ok());
  EXPECT_GT(arena->device_pins().awaited_bytes, 0u);
  const Arena::Leaving left = arena->EndLeaving();
  EXPECT_FALSE(left.waits);
  EXPECT_EQ(left.late_slots, uint64_t{1} << 5);
  const uint64_t kept = arena->device_pins().kept_bytes;
  EXPECT_EQ(kept, (slabs - arena->stats().slabs_in_service) * kSlab);
  EXPECT_LE(AllocatedBytes(*arena), 7 * kMiB) << "the file's memory is gone";

  ASSERT_TRUE(arena->Resize(6 * kMiB).ok());
  EXPECT_EQ(arena->device_pins().awaited_bytes, 0u) << "it is not waited for again";
  EXPECT_GT(arena->device_pins().kept_bytes, kept);
  EXPECT_EQ(arena->EndLeaving().late_slots, 0u) << "told once";

  arena->SetDevicePins(5, Bits(FirstSlabs(slabs)));
  ASSERT_TRUE(arena->Resize(5 * kMiB + kMiB / 2).ok());
  EXPECT_EQ(arena->device_pins().awaited_bytes, 0u) << "it only says again what it keeps";

  arena->SetDevicePins(5, Bits(FirstSlabs(arena->stats().slabs_in_service)));
  EXPECT_EQ(arena->device_pins().kept_bytes, 0u);
  ASSERT_TRUE(arena->Resize(5 * kMiB).ok());
  EXPECT_GT(arena->device_pins().awaited_bytes, 0u) << "it answers again";
}

// A worker of slot 9 that has pinned all slabs when one is to leave.
class PatienceTest : public ::testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kFull{320};

  // Asks for a slab. Returns how long the worker has: not less than the first, nor more than the
  // second.
  std::pair<std::chrono::nanoseconds, std::chrono::nanoseconds> Ask() {
    EXPECT_TRUE(arena_->Resize(8 * kMiB).ok());
    arena_->SetDevicePins(9, Bits(FirstSlabs(BackAll(*arena_))));  // it keeps nothing else
    const auto before = std::chrono::steady_clock::now();
    EXPECT_TRUE(arena_->Resize(8 * kMiB - kSlab).ok());
    const Arena::Leaving left = arena_->EndLeaving();
    if (!left.waits) return {std::chrono::nanoseconds(0), kForever};  // it was late already
    return {left.until - std::chrono::steady_clock::now(), left.until - before};
  }
  void BeLate() {
    ASSERT_TRUE(arena_->GiveUp(2 * kSlab)) << "waits until the worker is late";
    arena_->TakeBack(2 * kSlab);
  }
  void UnpinAll() { arena_->SetDevicePins(9, {}); }

  const ArenaPath path_;
  const std::unique_ptr<Arena> arena_ = OpenOrDie(PinOptions(path_, kFull));
};

TEST_F(PatienceTest, AWorkerThatIsLateAgainAndAgainHasHalfAsLongEachTime) {
  for (int late = 0; late < 5; ++late) {
    EXPECT_LE(Ask().first, kFull / (1 << late)) << late;
    BeLate();
  }
  EXPECT_LE(Ask().first, kFull / 32);
  UnpinAll();
  EXPECT_LE(Ask().first, kFull / 32) << "one that says that it has unpinned";
  arena_->ForgetDevicePins(9);
  EXPECT_GE(Ask().second, kFull) << "the slot's next worker";
}

TEST_F(PatienceTest, AWorkerThatUnpinsInTimeForLongHasTheFullTimeAgain) {
  Ask();
  BeLate();
  int asked = 1;
  for (; Ask().second < kFull && asked < 1'000; ++asked) UnpinAll();
  EXPECT_GE(asked, 17);
  EXPECT_LT(asked, 1'000);
}

TEST_F(PatienceTest, ASlabIsUnpinnedInTimeOnceHoweverOftenAWorkerSaysSo) {
  Ask();
  BeLate();
  arena_->SetDevicePins(10, Bits(FirstSlabs(32)));  // has the slab stay
  Ask();
  for (int i = 0; i < 100; ++i) {
    UnpinAll();
    arena_->SetDevicePins(9, Bits(FirstSlabs(32)));
  }
  UnpinAll();
  arena_->SetDevicePins(10, {});
  EXPECT_LE(Ask().first, kFull / 2);
}

TEST(UnpinPatienceTest, ItHalvesWhenAWorkerIsLateAndDoublesWhenItHasBeenInTimeForLong) {
  constexpr std::chrono::nanoseconds kFull{2'000'000'000};
  UnpinPatience patience;
  std::chrono::nanoseconds all{0};
  for (int i = 0; i < 100; ++i) {
    all += patience.Of(kFull);
    patience.Late();
  }
  EXPECT_LE(all, 2 * kFull + 100 * patience.Of(kFull)) << "whatever it does";
  EXPECT_LE(patience.Of(kFull), kFull / 1'000'000);
  patience = {};
  patience.Late();
  EXPECT_EQ(patience.Of(kFull), kFull / 2);
  for (int i = 0; i < 15; ++i) patience.InTime();
  EXPECT_EQ(patience.Of(kFull), kFull / 2) << "a few times are not enough";
  patience.InTime();
  EXPECT_EQ(patience.Of(kFull), kFull);
  for (int i = 0; i < 40; ++i) patience.InTime();
  EXPECT_EQ(patience.Of(kFull), kFull) << "never more";
}

TEST(DevicePinsTest, SlabsThatNobodyHasPinnedLeaveFirst) {
  const ArenaPath path;
  const auto arena = OpenOrDie(PinOptions(path, kForever));
  const uint64_t slabs = BackAll(*arena);
  std::set<uint64_t> pinned = FirstSlabs(slabs);
  for (uint64_t slab = 0; slab < 10; ++slab) pinned.erase(slab);
  arena->SetDevicePins(0, Bits(pinned));
  ASSERT_TRUE(arena->GiveUp(10 * kSlab)) << "waits for nobody";
  EXPECT_EQ(arena->stats().slabs_in_service, slabs - 10);
}

TEST(DevicePinsTest, WhoNeedsMemoryWaitsUntilAWorkerHasUnpinnedIt) {
  const ArenaPath path;
  const auto arena = OpenOrDie(PinOptions(path, kForever));
  BackAll(*arena);
  {
    const Follower worker(arena.get(), 7);
    worker.AwaitLook();
    ASSERT_TRUE(arena->GiveUp(kMiB));
    EXPECT_LE(AllocatedBytes(*arena), 7 * kMiB);
    arena->TakeBack(kMiB);
    BackAll(*arena);
    worker.AwaitLook();
    // Records of small pages need the memory of slabs: as in ServiceTest, where none is pinned.
    uint64_t extents = 0;
    while (arena->Allocate(4 * kKiB, 4 * kKiB).ok()) ++extents;
    EXPECT_EQ(extents, 64u * 25);
    EXPECT_LE(AllocatedBytes(*arena), 8 * kMiB);
  }
}

TEST(DevicePinsTest, WhoNeedsMemoryWaitsNoLongerThanAWorkerHas) {
  const ArenaPath path;
  const auto arena = OpenOrDie(PinOptions(path, std::chrono::milliseconds(1)));
  arena->SetDevicePins(7, Bits(FirstSlabs(BackAll(*arena))));
  ASSERT_TRUE(arena->GiveUp(kMiB));
  EXPECT_EQ(arena->EndLeaving().late_slots, uint64_t{1} << 7);
  EXPECT_EQ(arena->device_pins().kept_bytes, kMiB);
}

TEST(DevicePinsTest, AScrubZeroesPinnedSlabsWhereTheyAre) {
  const ArenaPath path;
  const auto arena = OpenOrDie(PinOptions(path, kForever));
  const uint64_t slabs = BackAll(*arena);
  const absl::StatusOr<block::Extent> extent = arena->Allocate(kSlab, kSlab);
  ASSERT_TRUE(extent.ok());
  std::memset(arena->data(*extent), 1, kSlab);
  arena->SetDevicePins(1, Bits({extent->offset / kSlab}));
  arena->Free(*extent);
  arena->Scrub({});
  EXPECT_EQ(arena->stats().slabs_in_service, 1u) << "of " << slabs;
  EXPECT_EQ(std::count(arena->data(*extent), arena->data(*extent) + kSlab, std::byte{0}), kSlab);
}

TEST(DevicePinsTest, SlabsBeyondTheArenaAreIgnored) {
  const ArenaPath path;
  const auto arena = OpenOrDie(PinOptions(path, kForever));
  arena->SetDevicePins(0, std::vector<std::byte>(1'000'000, std::byte{0xff}));
  EXPECT_EQ(arena->device_pins().bytes, arena->slabs() * kSlab);
}

TEST(DevicePinsTest, RandomSizesWithAWorkerThatFollowsNeverExceedTheCapacity) {
  const ArenaPath path;
  Arena::Options options = PinOptions(path, kForever);
  options.capacity_bytes = 4 * kMiB;
  const auto arena = OpenOrDie(options);
  const Follower worker(arena.get(), 2);
  std::mt19937_64 random(5);
  std::vector<block::Extent> live;
  uint64_t refused = 0, given_up = 0;
  for (uint64_t step = 0; step < 4'000; ++step) {
    static constexpr uint64_t kFull[] = {4'000, 30'000, 64 * kKiB, 256 * kKiB};
    const uint64_t full = kFull[random() % std::size(kFull)];
    const uint64_t what = random() % 8;
    if (what == 0 && given_up == 0) {
      given_up = arena->GiveUp(kSlab) ? kSlab : 0;
    } else if (what == 1 && given_up > 0) {
      arena->TakeBack(std::exchange(given_up, 0));
    } else if (what < 6) {
      const absl::StatusOr<block::Extent> extent = arena->Allocate(full, full);
      if (extent.ok()) live.push_back(*extent);
      refused += extent.ok() ? 0 : 1;
    } else {
      for (uint64_t i = 0; i < 2 && !live.empty(); ++i) {
        std::swap(live[random() % live.size()], live.back());
        arena->Free(live.back());
        live.pop_back();
      }
    }
    ASSERT_LE(AllocatedBytes(*arena), options.capacity_bytes - given_up) << step;
  }
  EXPECT_GT(refused, 50u) << "the arena was never full: the test proves nothing";
}

}  // namespace
}  // namespace prefixd::ram
