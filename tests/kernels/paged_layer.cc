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
};

void StoreUnit(const quant::UnitShape& shape, const UnitTokens& which, uint32_t seed,
               const LayerShape& layer, std::byte* unit) {
  for (uint32_t t = 0; t < which.tokens; ++t) {
    std::vector<float> row = RandomFloats(
        shape.dim,
        MixedSeed(seed, which.head, which.first_token + t, shape.side == quant::Side::kValue));
    for (uint32_t c = 0; layer.stripe != 0 && c < shape.dim; ++c) {
      row[c] = c / layer.stripe % 2 == 0 ? 1.0f : -1.0f;
    }
    const float by = shape.side == quant::Side::kValue ? layer.value_scale : 1;
    for (float& x : row) x *= layer.element_scale * by;
    quant::QuantizeToken(shape, row, t, unit);
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
  const quant::UnitShape key{.format = format.key,
                             .side = quant::Side::kKey,
                             .dim = shape.key_dim,
                             .page_tokens = block.page_tokens};
  const quant::UnitShape value{.format = format.value,
                               .side = quant::Side::kValue,
                               .dim = shape.value_dim,
                               .page_tokens = block.page_tokens};
  const uint64_t key_bytes = quant::LayoutOf(key).unit_bytes;
  const uint64_t value_bytes = quant::LayoutOf(value).unit_bytes;
  const size_t bytes = shape.kv_heads * (key_bytes + value_bytes);
  pages_.emplace_back(new (std::align_val_t(quant::kUnitAlignment)) std::byte[bytes]);
  std::byte* const page = pages_.back().get();
  std::memset(page, 0xff, bytes);
  std::byte* unit = page;
  for (uint32_t head = 0; head < shape.kv_heads; ++head, unit += key_bytes) {
    StoreUnit(key, {head, first_token, block.tokens}, seed, shape, unit);
  }
  for (uint32_t head = 0; head < shape.kv_heads; ++head, unit += value_bytes) {
    StoreUnit(value, {head, first_token, block.tokens}, seed, shape, unit);
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
  for (const Codec codec : {Codec::kMxFp4, Codec::kMxFp8, Codec::kNvFp4}) {
    add(quant::BlockFloatFormat(codec));
  }
  add(quant::Transposed(quant::RawFormat(Dtype::kF16)));
  return formats;
}

}  // namespace prefixd::kernels
