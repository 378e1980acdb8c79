// KV pages whose every byte follows from the tokens before and at its position, the layer, the head
// and whether it is K or V: a page that belongs to another prefix, place or tensor is recognized at
// once. For tests.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/checksum.h"
#include "block/page_layout.h"
#include "block/space_identity.h"
#include "quant/unit.h"

namespace prefixd::testing {

inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

inline void Fill(std::byte* to, size_t bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes; ++i) {
    if (i % 8 == 0) seed = Mix(seed);
    to[i] = static_cast<std::byte>(seed >> (i % 8 * 8));
  }
}

// The bytes of tokens [first, first + count) of `tokens` in one group: what a worker would have
// computed and quantized.
inline std::vector<std::byte> MakePage(const block::LayerGroup& group, uint32_t rung,
                                       std::span<const block::Token> tokens, uint32_t first,
                                       uint32_t count) {
  const block::PageLayout layout = block::LayoutOfPage(group, rung, count);
  std::vector<std::byte> page(layout.page_bytes);
  if (group.kind == block::LayerKind::kState) {  // what the first first + count tokens leave behind
    const uint64_t prefix = base::Xxh3(base::AsBytes(tokens.data(), first + count));
    Fill(page.data(), page.size(), Mix(prefix ^ Mix(group.layers.front())));
    return page;
  }
  for (uint32_t t = 0; t < count; ++t) {
    const uint64_t prefix = base::Xxh3(base::AsBytes(tokens.data(), first + t + 1));
    for (uint32_t layer = 0; layer < group.layers.size(); ++layer) {
      for (uint32_t head = 0; head < group.kv_heads; ++head) {
        for (bool key : {true, false}) {
          if (!key && group.value_source != block::ValueSource::kStored) continue;
          const quant::TensorFormat& format =
              key ? group.ladder[rung].key : group.ladder[rung].value;
          const uint32_t dim = key ? group.key_dim : group.value_dim;
          const quant::RowBytes row = quant::BytesOfStoredRow(quant::InRows(format), dim);
          const uint64_t at = key ? block::KeyUnitOffset(group, layout, layer, head)
                                  : block::ValueUnitOffset(group, layout, layer, head);
          std::vector<std::byte> packed(row.total());
          const quant::ConstRowPlace place{.codes = packed.data(),
                                           .scales = packed.data() + row.codes,
                                           .biases = packed.data() + row.codes + row.scales};
          const uint64_t seed = Mix(
              prefix ^ Mix(group.layers[layer] * 1000 + head * 2 + (key ? 1 : 0) + rung * 77777));
          Fill(packed.data(), row.codes, seed);
          Fill(packed.data() + row.codes, row.scales, Mix(seed + 1));
          Fill(packed.data() + row.codes + row.scales, row.biases, Mix(seed + 2));
          quant::StoreRow({.format = format,
                           .side = key ? quant::Side::kKey : quant::Side::kValue,
                           .dim = dim,
                           .page_tokens = count},
                          place, t, page.data() + at);
        }
      }
    }
  }
  return page;
}

// A small valid identity: `layers` layers in groups of two, K wider than V.
inline block::SpaceIdentity SmallIdentity(uint32_t block_tokens = 16, uint32_t layers = 4,
                                          quant::KvFormat format = {
                                              quant::MlxAffineFormat(8, 32, quant::Dtype::kF16),
                                              quant::MlxAffineFormat(4, 32, quant::Dtype::kF16)}) {
  block::SpaceIdentity identity;
  identity.model = "small";
  identity.weights_digest[0] = std::byte{1};
  identity.tokenizer_digest[0] = std::byte{2};
  identity.rope = {.theta = 10000, .scaling = "", .scaling_params = {}, .rotary_dims = 64};
  identity.tenant = "local";
  identity.block_tokens = block_tokens;
  for (uint32_t first = 0; first < layers; first += 2) {
    block::LayerGroup group;
    group.name = "full." + std::to_string(first / 2);
    group.layers = {first};
    if (first + 1 < layers) group.layers.push_back(first + 1);
    group.kv_heads = 2;
    group.key_dim = 64;
    group.value_dim = 32;
    group.ladder = {format};
    identity.groups.push_back(group);
  }
  return identity;
}

}  // namespace prefixd::testing
