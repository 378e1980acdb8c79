#include "bench/paged_layer.h"

#include <cstring>
#include <new>
#include <random>

#include "kernels/quantize.h"

namespace prefixd::bench {
namespace {

constexpr std::align_val_t kAlignment{quant::kUnitAlignment};

uint64_t UnitBytes(const quant::TensorFormat& format, uint32_t dim) {
  return quant::LayoutOfUnit(format, dim, kPageTokens).unit_bytes;
}

uint64_t PageBytes(const PagedShape& shape, const quant::KvFormat& format) {
  return shape.kv_heads * (UnitBytes(format.key, shape.dim) + UnitBytes(format.value, shape.dim));
}

// Quantizes the tokens of page `page` of `tensor`, [heads][tokens][dim].
void Store(const PagedShape& shape, const quant::TensorFormat& format,
           const std::vector<float>& tensor, uint32_t page, std::byte* units) {
  const float* first = tensor.data() + size_t{page} * kPageTokens * shape.dim;
  kernels::Quantize(format,
                    {.data = reinterpret_cast<const std::byte*>(first),
                     .dtype = quant::Dtype::kF32,
                     .head_stride = size_t{shape.tokens} * shape.dim,
                     .token_stride = shape.dim},
                    {.heads = shape.kv_heads,
                     .dim = shape.dim,
                     .page_tokens = kPageTokens,
                     .first_token = 0,
                     .tokens = kPageTokens},
                    units);
}

}  // namespace

AlignedBytes::AlignedBytes(size_t bytes) : size_(bytes), data_(new (kAlignment) std::byte[bytes]) {
  std::memset(data_.get(), 0, bytes);
}

void AlignedBytes::Free::operator()(std::byte* bytes) const {
  ::operator delete[](bytes, kAlignment);
}

std::vector<float> NormalFloats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

PagedLayers::PagedLayers(const PagedShape& shape, const quant::KvFormat& format)
    : format_(format),
      bytes_(PageBytes(shape, format) * (shape.tokens / kPageTokens) * shape.layers) {
  const size_t floats = size_t{shape.kv_heads} * shape.tokens * shape.dim;
  const std::vector<float> key = NormalFloats(floats, 1), value = NormalFloats(floats, 2);
  std::byte* at = bytes_.data();
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    std::vector<quant::BlockTableEntry>& table = tables_.emplace_back();
    for (uint32_t page = 0; page < shape.tokens / kPageTokens; ++page) {
      Store(shape, format.key, key, page, at);
      Store(shape, format.value, value, page,
            at + shape.kv_heads * UnitBytes(format.key, shape.dim));
      table.push_back({.units = at, .page_tokens = kPageTokens, .tokens = kPageTokens});
      at += PageBytes(shape, format);
    }
  }
}

}  // namespace prefixd::bench
