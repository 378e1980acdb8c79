#include "bench/trace/geometry.h"

#include <algorithm>

#include "base/bytes.h"
#include "bench/common/mix.h"
#include "ram/arena.h"
#include "ram/budget.h"

namespace prefixd::bench {
namespace {

constexpr uint64_t kUnit = 4096;
constexpr uint64_t kSizesTried = 24;
constexpr uint64_t kIndexStep = uint64_t{1} << 20;
// A reserved token takes 8 bytes, of half of the index's share; and as much again for leases.
constexpr uint64_t kIndexOfReservedToken = 2 * 8 * 2;

struct Wanted {
  TraceShape shape;
  uint64_t blocks = 0, longest = 0;  // of the trace
  bool has_ssd = false;
};

// What the index will need at most: reservations, or the names of blocks and of those given up
// (index/memory_test.cc, index/space.h).
uint64_t IndexNeeds(const Wanted& wanted, uint64_t index_most_bytes) {
  constexpr uint64_t kBytesOfGhost = 64;
  const uint64_t ghosts = std::min<uint64_t>(65536, index_most_bytes / 512);
  const uint64_t names =
      wanted.blocks * wanted.shape.kv_blocks * (160 + 4 * uint64_t{wanted.shape.block_tokens}) +
      ghosts * kBytesOfGhost;
  const uint64_t reserved = kIndexOfReservedToken * wanted.longest * wanted.shape.tokens();
  return std::max(reserved, names + reserved / 2) / 15 * 16;
}

// Pages that a budget holds once the index has grown to what it needs (cache/room/index_share.cc).
uint64_t PagesIn(uint64_t ram_bytes, const Wanted& wanted) {
  const auto shares = ram::CutBudget(ram_bytes, wanted.has_ssd, /*shared_arena=*/false);
  if (!shares.ok()) return 0;
  const uint64_t slab = ram::Arena::DefaultSlab(shares->arena_bytes, /*shared=*/false);
  const uint64_t index =
      std::min(IndexNeeds(wanted, shares->index_most_bytes), shares->index_most_bytes);
  const uint64_t grown = base::AlignUp(index - std::min(index, shares->index_bytes), kIndexStep);
  const uint64_t left = shares->arena_bytes - std::min(grown, shares->arena_bytes);
  return left / slab * (slab / wanted.shape.page_bytes);
}

// The smallest budget that holds so many pages; more budget never holds fewer by much.
uint64_t SmallestRam(uint64_t pages, uint64_t least_ram, const Wanted& wanted) {
  uint64_t low = least_ram, high = uint64_t{1} << 40;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (PagesIn(middle, wanted) >= pages) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

block::SpaceIdentity IdentityOf(const TraceShape& shape) {
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF16);
  // A head of K and one of V for every 4 KiB.
  const auto dim = static_cast<uint32_t>(kUnit / 4 / shape.block_tokens);
  block::SpaceIdentity identity;
  identity.model = "trace";
  identity.weights_digest[0] = std::byte{1};
  identity.block_tokens = shape.block_tokens;
  block::LayerGroup group;
  group.name = "all";
  group.layers = {0};
  group.kv_heads = static_cast<uint32_t>(shape.page_bytes / kUnit);
  group.key_dim = group.value_dim = dim;
  group.ladder = {{.key = raw, .value = raw}};
  identity.groups = {group};
  return identity;
}

std::vector<block::Token> TokensOf(const TraceShape& shape, std::span<const TraceBlock> path) {
  std::vector<block::Token> tokens;
  tokens.reserve(path.size() * shape.tokens());
  for (const TraceBlock id : path) {
    tokens.push_back(id);
    for (uint32_t i = 1; i < shape.tokens(); ++i) {
      tokens.push_back(static_cast<block::Token>(Mix(uint64_t{id} << 16 | i) >> 40));
    }
  }
  return tokens;
}

RamFit FitRam(const TraceShape& shape, uint64_t blocks, uint64_t longest, bool has_ssd) {
  RamFit best;
  Wanted wanted{.shape = shape, .blocks = blocks, .longest = longest, .has_ssd = has_ssd};
  // Of few blocks, larger pages: there is a smallest budget, and one whose index has room.
  const uint64_t least_ram =
      std::max(ram::kMinRamBudget, 16 * kIndexOfReservedToken * longest * shape.tokens());
  wanted.shape.page_bytes = kUnit;
  const uint64_t least = (PagesIn(least_ram, wanted) / (blocks * shape.kv_blocks) + 1) * kUnit;
  const uint64_t from = std::max(shape.page_bytes, least);
  for (uint64_t step = 0; step < 2 * kSizesTried && best.blocks * 1000 < blocks * 997; ++step) {
    // An arena of less than half a GiB has 32 slabs, however large their pages.
    wanted.shape.page_bytes =
        step < kSizesTried ? from + step * kUnit : from * (step - kSizesTried + 2);
    const uint64_t ram = SmallestRam(blocks * shape.kv_blocks, least_ram, wanted);
    // Never more than was asked for: the smallest budget that would hold more, less a byte.
    for (const uint64_t candidate : {ram, ram - 1}) {
      const uint64_t held = PagesIn(candidate, wanted) / shape.kv_blocks;
      if (held > best.blocks && held <= blocks) {
        best = {.shape = wanted.shape, .ram_bytes = candidate, .blocks = held};
      }
    }
  }
  return best;
}

}  // namespace prefixd::bench
