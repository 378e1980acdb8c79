#include "bench/trace/geometry.h"

#include <algorithm>

#include "bench/common/mix.h"
#include "ram/budget.h"

namespace prefixd::bench {
namespace {

constexpr uint64_t kUnit = 4096;
constexpr uint64_t kSizesTried = 24;
// A reserved token takes 8 bytes, of half of the index's sixteenth of the budget; and as much again
// for leases.
constexpr uint64_t kRamOfReservedToken = 2 * 8 * 2 * 16;

uint64_t ArenaBytes(uint64_t ram_bytes, bool has_ssd) {
  const auto shares = ram::CutBudget(ram_bytes, has_ssd, /*shared_arena=*/false);
  return shares.ok() ? shares->arena_bytes : 0;
}

// As the arena cuts it: ram/arena.h.
uint64_t SlabBytes(uint64_t arena_bytes) {
  const uint64_t wanted = std::clamp<uint64_t>(arena_bytes / 64, 4u << 20, 64u << 20);
  return std::min(wanted, arena_bytes) / kUnit * kUnit;
}

uint64_t PagesIn(uint64_t arena_bytes, uint64_t page_bytes) {
  const uint64_t slab = SlabBytes(arena_bytes);
  return slab == 0 ? 0 : arena_bytes / slab * (slab / page_bytes);
}

// The smallest budget that holds so many pages; more budget never holds fewer by much.
uint64_t SmallestRam(uint64_t pages, uint64_t page_bytes, bool has_ssd) {
  uint64_t low = ram::kMinRamBudget, high = uint64_t{1} << 40;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (PagesIn(ArenaBytes(middle, has_ssd), page_bytes) >= pages) {
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
  // Of few blocks, larger pages: there is a smallest budget, and one whose index has room.
  const uint64_t least_ram =
      std::max(ram::kMinRamBudget, kRamOfReservedToken * longest * shape.tokens());
  const uint64_t least =
      (ArenaBytes(least_ram, has_ssd) / (blocks * shape.kv_blocks) / kUnit + 1) * kUnit;
  for (uint64_t step = 0; step < kSizesTried && best.blocks * 1000 < blocks * 997; ++step) {
    TraceShape tried = shape;
    tried.page_bytes = std::max(shape.page_bytes, least) + step * kUnit;
    const uint64_t pages = blocks * tried.kv_blocks;
    const uint64_t ram = SmallestRam(pages, tried.page_bytes, has_ssd);
    // Never more than was asked for: the smallest budget that would hold more, less a byte.
    for (const uint64_t candidate : {ram, ram - 1}) {
      const uint64_t held =
          PagesIn(ArenaBytes(candidate, has_ssd), tried.page_bytes) / tried.kv_blocks;
      if (held > best.blocks && held <= blocks) {
        best = {.shape = tried, .ram_bytes = candidate, .blocks = held};
      }
    }
  }
  return best;
}

}  // namespace prefixd::bench
