#include "sizing/ram_room.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/status.h"
#include "block/extent.h"
#include "ram/arena.h"
#include "ram/budget.h"

namespace prefixd::sizing {
namespace {

constexpr uint64_t kPageTarget = uint64_t{1} << 20;

}  // namespace

absl::StatusOr<RamRoom> RoomOf(uint64_t ram_bytes, bool has_ssd, const BlockShape& shape) {
  PREFIXD_ASSIGN_OR_RETURN(const ram::BudgetShares shares,
                           ram::CutBudget(ram_bytes, has_ssd, shape.shared_arena));
  const uint64_t block_bytes = shape.bytes_per_token * shape.block_tokens;
  const uint64_t pages = shape.pages > 0 ? shape.pages : (block_bytes - 1) / kPageTarget + 1;
  const uint64_t page_bytes = (block_bytes - 1) / pages + 1;
  const uint64_t blocks =
      ram::Arena::PagesOf(shares.arena_bytes, page_bytes, shape.shared_arena) / pages;
  RamRoom room;
  room.tokens = blocks * shape.block_tokens;
  room.payload_bytes = room.tokens * shape.bytes_per_token;
  room.index_bytes = shares.index_bytes;
  room.index_most_bytes = shares.index_most_bytes;
  room.slab_bytes = ram::Arena::DefaultSlab(shares.arena_bytes, shape.shared_arena);
  room.tokens_of_slab =
      room.slab_bytes / base::AlignUp(page_bytes, block::kExtentUnit) * shape.block_tokens / pages;
  room.index_bytes_per_block = 96 + 16 * pages + 4 * shape.block_tokens;
  room.index_bytes_in_ram = 48 * pages;
  return room;
}

}  // namespace prefixd::sizing
