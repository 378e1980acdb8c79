#include "client/cuda/slices.h"

#include <atomic>
#include <random>
#include <vector>

#include "gtest/gtest.h"

#include "block/arena_file.h"
#include "tests/cuda/cases.h"

namespace prefixd::cuda {
namespace {

Slices MustPlan(uint64_t bytes, uint64_t slab_bytes, uint64_t slice_bytes) {
  auto slices =
      Slices::Plan({.bytes = bytes, .slab_bytes = slab_bytes, .slice_bytes = slice_bytes});
  EXPECT_TRUE(slices.ok()) << slices.status();
  return *std::move(slices);
}

TEST(SlicesTest, SlicesAreWholeSlabsAndCoverTheArenaOnce) {
  const Slices slices = MustPlan(100 * kMiB, 2 * kMiB, 31 * kMiB);
  EXPECT_EQ(slices.slice_bytes(), 32 * kMiB);
  ASSERT_EQ(slices.count(), 4u);
  uint64_t next = 0;
  for (size_t i = 0; i < slices.count(); ++i) {
    EXPECT_EQ(slices.At(i).offset, next);
    next += slices.At(i).bytes;
  }
  EXPECT_EQ(next, 100 * kMiB);
  EXPECT_EQ(slices.At(3).bytes, 4 * kMiB);
}

TEST(SlicesTest, AnArenaSmallerThanASliceIsOneSlice) {
  const Slices slices = MustPlan(3 * kMiB + 5, 2 * kMiB, 64 * kMiB);
  ASSERT_EQ(slices.count(), 1u);
  EXPECT_EQ(slices.At(0).bytes, 3 * kMiB + 5);
}

TEST(SlicesTest, ARangeIsPinnedOnlyIfEverySliceOfItIs) {
  Slices slices = MustPlan(8 * kMiB, 2 * kMiB, 2 * kMiB);
  EXPECT_FALSE(slices.ArePinned(0, 1));
  slices.SetRegistered(1, slices.MemoryOf(1));
  slices.SetRegistered(2, slices.MemoryOf(2));
  EXPECT_TRUE(slices.ArePinned(2 * kMiB, 4 * kMiB));
  EXPECT_FALSE(slices.ArePinned(2 * kMiB - 1, 2));
  EXPECT_FALSE(slices.ArePinned(6 * kMiB - 1, 2));
  EXPECT_FALSE(slices.ArePinned(2 * kMiB, 0)) << "no bytes are not pinned";
  EXPECT_FALSE(slices.ArePinned(9 * kMiB, 1)) << "beyond the arena";
  EXPECT_FALSE(slices.ArePinned(2 * kMiB, ~uint64_t{0})) << "an end that overflows";
}

TEST(SlicesTest, ASlabThatLostItsMemoryIsNotPinnedAnyMoreNorWhenItHasOtherMemory) {
  std::vector<std::atomic<uint64_t>> service(8);  // every second word is something else
  for (size_t i = 0; i < service.size(); i += 2) service[i] = block::Guarded(0);
  auto planned = Slices::Plan({.bytes = 8 * kMiB,
                               .slab_bytes = 2 * kMiB,
                               .slice_bytes = 32 * kMiB,
                               .service = service.data(),
                               .service_stride = 2});
  ASSERT_TRUE(planned.ok()) << planned.status();
  Slices slices = *std::move(planned);
  ASSERT_EQ(slices.count(), 4u) << "a slab each";
  EXPECT_FALSE(Slices::HasMemory(slices.MemoryOf(1)));
  const auto change = [&] { service[2] = block::NextService(service[2]); };
  change();
  EXPECT_TRUE(Slices::HasMemory(slices.MemoryOf(1)));
  EXPECT_FALSE(slices.ArePinned(2 * kMiB, 1));
  slices.SetRegistered(1, slices.MemoryOf(1));
  EXPECT_TRUE(slices.ArePinned(2 * kMiB, 2 * kMiB));
  EXPECT_TRUE(slices.At(1).pinned);
  EXPECT_TRUE(slices.Cut(3 * kMiB, 4096)[0].pinned);
  for (int i = 0; i < 2; ++i) {  // punched, and in service again
    change();
    EXPECT_FALSE(slices.ArePinned(2 * kMiB, 1)) << i;
    EXPECT_FALSE(slices.At(1).pinned);
    EXPECT_FALSE(slices.Cut(3 * kMiB, 4096)[0].pinned);
  }
}

TEST(SlicesTest, ACopyIsCutWhereASliceEnds) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const uint64_t slab = 4096 * (1 + random() % 8);
    const uint64_t bytes = 4096 * (1 + random() % 200) + random() % 4096;
    Slices slices = MustPlan(bytes, slab, slab * (1 + random() % 5));
    for (size_t i = 0; i < slices.count(); ++i) slices.SetRegistered(i, random() % 2);
    const uint64_t offset = random() % bytes, count = 1 + random() % (bytes - offset);
    uint64_t next = offset;
    for (const Slice& piece : slices.Cut(offset, count)) {
      EXPECT_EQ(piece.offset, next);
      EXPECT_EQ(piece.offset / slices.slice_bytes(),
                (piece.offset + piece.bytes - 1) / slices.slice_bytes())
          << "a copy across two registrations is refused by CUDA";
      EXPECT_EQ(piece.pinned, slices.ArePinned(piece.offset, piece.bytes));
      next += piece.bytes;
    }
    EXPECT_EQ(next, offset + count);
  }
}

TEST(SlicesTest, WhatCannotBeCutIsRefusedWithTheReason) {
  EXPECT_EQ(Slices::Plan({.bytes = 0, .slab_bytes = 4096, .slice_bytes = 4096}).status().message(),
            "pin: the arena has no bytes");
  EXPECT_EQ(Slices::Plan({.bytes = 9, .slab_bytes = 100, .slice_bytes = 4096}).status().message(),
            "pin: slab_bytes is 100, must be a multiple of 4096");
  EXPECT_FALSE(
      Slices::Plan({.bytes = uint64_t{1} << 50, .slab_bytes = 4096, .slice_bytes = 4096}).ok());
}

}  // namespace
}  // namespace prefixd::cuda
