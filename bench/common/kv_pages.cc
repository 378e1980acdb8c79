#include "bench/common/kv_pages.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "block/page_layout.h"
#include "block/split_layers.h"
#include "kernels/quantize.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kModelLayers = 32;
// Different contents of one layer's units; pages take turns. Enough for any order of adding to
// matter, few enough that filling is copying.
constexpr uint32_t kContents = 13;

void QuantizeUnits(quant::Side side, const KvShape& shape, const std::vector<float>& floats,
                   std::byte* units) {
  kernels::Quantize(side == quant::Side::kKey ? shape.format.key : shape.format.value,
                    {.data = reinterpret_cast<const std::byte*>(floats.data()),
                     .dtype = quant::Dtype::kF32,
                     .head_stride = size_t{shape.block_tokens} * shape.dim,
                     .token_stride = shape.dim},
                    {.side = side,
                     .heads = shape.kv_heads,
                     .dim = shape.dim,
                     .page_tokens = shape.block_tokens,
                     .first_token = 0,
                     .tokens = shape.block_tokens},
                    units);
}

// One layer's units of one block, kContents times.
std::vector<std::vector<std::byte>> MakeContents(const KvShape& shape,
                                                 const block::PageLayout& layout) {
  std::vector<std::vector<std::byte>> contents;
  const size_t floats = size_t{shape.kv_heads} * shape.block_tokens * shape.dim;
  const uint32_t seed = shape.seed * 2 * kContents;
  for (uint32_t i = 0; i < kContents; ++i) {
    std::vector<std::byte>& units = contents.emplace_back(layout.layer_bytes);
    QuantizeUnits(quant::Side::kKey, shape, NormalFloats(floats, seed + 2 * i), units.data());
    QuantizeUnits(quant::Side::kValue, shape, NormalFloats(floats, seed + 2 * i + 1),
                  units.data() + shape.kv_heads * layout.key_unit_bytes);
  }
  return contents;
}

// A worker's mapping has page-table entries for what it read before: a decode step after the first
// finds them. Without this every read would be the first.
void MapForReading(const StoredPage& page, uint64_t bytes) {
  constexpr uint64_t kSmallPage = 4096;
  for (uint64_t at = 0; at < bytes; at += kSmallPage) {
    static_cast<void>(*static_cast<const volatile std::byte*>(page.read + at));
  }
}

}  // namespace

std::vector<float> NormalFloats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

block::LayerGroup GroupOf(const KvShape& shape) {
  block::LayerGroup layer;
  layer.kv_heads = shape.kv_heads;
  layer.key_dim = layer.value_dim = shape.dim;
  layer.ladder = {shape.format};
  return block::SplitLayers(
             std::vector<block::LayerGroup>(shape.layers == 0 ? kModelLayers : shape.layers, layer),
             shape.block_tokens)
      .front();
}

absl::StatusOr<KvPages> KvPages::Fill(PageStore& store, const KvShape& shape) {
  KvPages filled(shape);
  const block::LayerGroup group = GroupOf(shape);
  const block::PageLayout layout = block::LayoutOfPage(group, 0, shape.block_tokens);
  PREFIXD_ASSIGN_OR_RETURN(std::vector<StoredPage> pages, store.Cut(layout.page_bytes));
  const size_t blocks = shape.tokens / shape.block_tokens;
  if (pages.size() < blocks) {
    return absl::ResourceExhaustedError(absl::StrCat("pages: the store has room for ", pages.size(),
                                                     " blocks, a sequence of ", shape.tokens,
                                                     " tokens has ", blocks));
  }
  const size_t most = shape.sequences == 0 ? pages.size() : shape.sequences * blocks;
  pages.resize(std::min(pages.size() / blocks * blocks, most));
  const std::vector<std::vector<std::byte>> contents = MakeContents(shape, layout);
  const auto layers = static_cast<uint32_t>(group.layers.size());
  size_t next = 0;
  for (const StoredPage& page : pages) {
    for (uint32_t layer = 0; layer < layers; ++layer) {
      std::memcpy(page.write + layer * layout.layer_bytes, contents[next++ % kContents].data(),
                  layout.layer_bytes);
    }
    MapForReading(page, layout.page_bytes);
  }
  filled.table_bytes_ = layout.payload_bytes / layers * blocks;
  filled.commit_order_ = filled.TablesOf(pages, layers, layout.layer_bytes);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(5));
  filled.random_order_ = filled.TablesOf(pages, layers, layout.layer_bytes);
  return filled;
}

KvPages::Tables KvPages::TablesOf(const std::vector<StoredPage>& pages, uint32_t layers,
                                  uint64_t layer_bytes) const {
  Tables tables;
  const size_t blocks = shape_.tokens / shape_.block_tokens;
  for (size_t first = 0; first < pages.size(); first += blocks) {
    for (uint32_t layer = 0; layer < layers; ++layer) {
      std::vector<quant::BlockTableEntry>& table = tables.emplace_back();
      for (size_t block = first; block < first + blocks; ++block) {
        table.push_back({.units = pages[block].read + layer * layer_bytes,
                         .page_tokens = shape_.block_tokens,
                         .tokens = shape_.block_tokens});
      }
    }
  }
  return tables;
}

}  // namespace prefixd::bench
