// What a RAM budget is said to hold is what the arena of that budget takes.
#include "sizing/ram_room.h"

#include <gtest/gtest.h>

#include "ram/arena.h"
#include "ram/budget.h"
#include "tests/ram/shared_arena.h"

namespace prefixd::sizing {
namespace {

uint64_t Fill(ram::Arena& arena, uint64_t page_bytes) {
  uint64_t pages = 0;
  while (arena.Allocate(page_bytes, page_bytes).ok()) ++pages;
  return pages;
}

TEST(RamRoomTest, APrivateArenaTakesAsManyPages) {
  for (const uint64_t ram : {uint64_t{64} << 20, uint64_t{300} << 20}) {
    for (const uint32_t page : {20u << 10, 1u << 20, 1000u}) {
      const auto shares = ram::CutBudget(ram, /*has_ssd=*/true, /*shared_arena=*/false);
      ASSERT_TRUE(shares.ok());
      const auto arena = ram::Arena::Open({.capacity_bytes = shares->arena_bytes});
      ASSERT_TRUE(arena.ok()) << arena.status();
      const auto room = RoomOf(ram, /*has_ssd=*/true,
                               {.bytes_per_token = page, .block_tokens = 1, .shared_arena = false});
      ASSERT_TRUE(room.ok()) << room.status();
      EXPECT_EQ(room->tokens, Fill(**arena, page)) << ram << " " << page;
      EXPECT_EQ(room->payload_bytes, room->tokens * page);
    }
  }
}

TEST(RamRoomTest, ASharedArenaTakesAsManyPagesBesideItsRecords) {
  for (const uint32_t page : {20u << 10, 1u << 20}) {
    const uint64_t ram = uint64_t{96} << 20;
    const auto shares = ram::CutBudget(ram, /*has_ssd=*/false, /*shared_arena=*/true);
    ASSERT_TRUE(shares.ok());
    const ram::ArenaPath path;
    const auto arena =
        ram::Arena::Open({.capacity_bytes = shares->arena_bytes, .path = path.str()});
    if (!arena.ok()) GTEST_SKIP() << arena.status();
    const auto room = RoomOf(ram, /*has_ssd=*/false, {.bytes_per_token = page, .block_tokens = 1});
    ASSERT_TRUE(room.ok()) << room.status();
    EXPECT_EQ(room->tokens, Fill(**arena, page)) << page;
  }
}

// With an SSD tier and staging memory, which take their parts: daemon/README.md, Sizing. Llama-3-8B
// raw, Qwen3-0.6B in 8 bits, a model whose page does not divide a slab.
TEST(RamRoomTest, P92PagesAreNinetyTwoPercentOfABudgetFromTwoGibibytesOn) {
  for (const uint64_t gib : {2u, 4u, 8u, 64u}) {
    for (const uint64_t bytes_per_token : {131'072u, 60'928u, 36'864u}) {
      const auto room = RoomOf(gib << 30, true, {.bytes_per_token = bytes_per_token});
      ASSERT_TRUE(room.ok()) << room.status();
      const double share =
          static_cast<double>(room->payload_bytes) / static_cast<double>(gib << 30);
      EXPECT_GT(share, 0.92) << gib << " GiB, " << bytes_per_token << " bytes a token";
      EXPECT_LT(share, 0.99);
    }
  }
}

TEST(RamRoomTest, ABudgetBelowTheLeastIsRefused) {
  EXPECT_EQ(RoomOf(1 << 20, false, {.bytes_per_token = 1024}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace prefixd::sizing
