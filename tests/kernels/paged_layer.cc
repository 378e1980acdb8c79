#include "tests/kernels/paged_layer.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

namespace prefixd::kernels {
namespace {

// Well spread over small integers, which std::mt19937's own seeding is not made for.
uint32_t MixedSeed(uint32_t seed, uint32_t head, uint32_t token, bool value) {
  std::seed_seq sequence{seed, head, token, value ? 1u : 0u};
  uint32_t mixed;
  sequence.generate(&mixed, &mixed + 1);
  return mixed;
}

struct UnitTokens {
  uint32_t head = 0;
  uint32_t first_token = 0;
  uint32_t tokens = 0;
  bool value = false;
};

void StoreUnit(const quant::TensorFormat& format, const quant::UnitLayout& layout, uint32_t dim,
               const UnitTokens& which, uint32_t seed, std::byte* unit) {
  for (uint32_t t = 0; t < which.tokens; ++t) {
    const std::vector<float> row =
        RandomFloats(dim, MixedSeed(seed, which.head, which.first_token + t, which.value));
    quant::QuantizeRow(format, row, quant::RowOf(unit, layout, format, dim, t));
  }
}

}  // namespace

std::vector<BlockShape> UniformBlocks(uint32_t tokens, uint32_t block_tokens, uint32_t format) {
  std::vector<BlockShape> blocks;
  for (uint32_t done = 0; done < tokens; done += block_tokens) {
    blocks.push_back({std::min(block_tokens, tokens - done), block_tokens, format});
  }
  return blocks;
}

PagedLayer::PagedLayer(const LayerShape& shape, std::vector<quant::KvFormat> formats,
                       const std::vector<BlockShape>& blocks, uint32_t seed)
    : formats_(std::move(formats)) {
  uint32_t first_token = 0;
  for (const BlockShape& block : blocks) {
    entries_.push_back({.units = StoreUnits(shape, block, first_token, seed),
                        .page_tokens = block.page_tokens,
                        .tokens = block.tokens,
                        .format = block.format});
    first_token += block.tokens;
  }
}

std::byte* PagedLayer::StoreUnits(const LayerShape& shape, const BlockShape& block,
                                  uint32_t first_token, uint32_t seed) {
  const quant::KvFormat& format = formats_[block.format];
  const quant::UnitLayout key = quant::LayoutOfUnit(format.key, shape.key_dim, block.page_tokens);
  const quant::UnitLayout value =
      quant::LayoutOfUnit(format.value, shape.value_dim, block.page_tokens);
  const size_t bytes = shape.kv_heads * (key.unit_bytes + value.unit_bytes);
  pages_.emplace_back(new (std::align_val_t(quant::kUnitAlignment)) std::byte[bytes]);
  std::byte* const page = pages_.back().get();
  std::memset(page, 0xff, bytes);
  std::byte* unit = page;
  for (uint32_t head = 0; head < shape.kv_heads; ++head, unit += key.unit_bytes) {
    StoreUnit(format.key, key, shape.key_dim, {head, first_token, block.tokens, false}, seed, unit);
  }
  for (uint32_t head = 0; head < shape.kv_heads; ++head, unit += value.unit_bytes) {
    StoreUnit(format.value, value, shape.value_dim, {head, first_token, block.tokens, true}, seed,
              unit);
  }
  return page;
}

std::vector<float> RandomFloats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<quant::TensorFormat> FormatsFor(uint32_t dim) {
  using quant::Codec;
  using quant::Dtype;
  std::vector<quant::TensorFormat> formats;
  const auto add = [&](const quant::TensorFormat& format) {
    if (quant::Validate(format, dim).ok()) formats.push_back(format);
  };
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    add(quant::RawFormat(dtype));
    for (const uint8_t bits : std::initializer_list<uint8_t>{2, 3, 4, 5, 6, 8}) {
      for (const uint16_t group : std::initializer_list<uint16_t>{32, 64, 128})
        add(quant::MlxAffineFormat(bits, group, dtype));
    }
  }
  for (const Codec codec : {Codec::kQ4_0, Codec::kQ4_1, Codec::kQ5_0, Codec::kQ5_1, Codec::kQ8_0}) {
    add(quant::GgmlFormat(codec));
  }
  return formats;
}

}  // namespace prefixd::kernels
