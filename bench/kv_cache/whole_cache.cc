#include "bench/kv_cache/whole_cache.h"

#include <algorithm>
#include <cmath>

#include "bench/common/kv_pages.h"
#include "kernels/quantize.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kBlockTokens = 64;

uint64_t UnitBytes(const quant::TensorFormat& format, uint32_t dim, uint32_t tokens) {
  return quant::LayoutOfUnit(format, dim, tokens).unit_bytes;
}

// One tensor of one layer: whole blocks, and one for the rest.
uint64_t TensorUnitsBytes(const KvCacheOptions& shape, const quant::TensorFormat& format) {
  const uint32_t rest = shape.seq_len % kBlockTokens;
  const uint64_t whole =
      shape.seq_len / kBlockTokens * UnitBytes(format, shape.head_dim, kBlockTokens);
  return shape.heads * (whole + (rest == 0 ? 0 : UnitBytes(format, shape.head_dim, rest)));
}

}  // namespace

FloatPool::FloatPool(size_t floats, uint32_t seed) : pool_(NormalFloats(kPlaces, seed)) {
  pool_.resize(kPlaces + floats);
  for (size_t i = kPlaces; i < pool_.size(); ++i) pool_[i] = pool_[i - kPlaces];
}

void Distance::Add(const float* before, const float* after, size_t floats) {
  // Sums of a row's size in float: rounding stays far below the digits that are shown.
  constexpr size_t kRow = 256;
  for (size_t done = 0; done < floats; done += kRow) {
    const size_t end = std::min(floats, done + kRow);
    float row = 0, most = 0;
    for (size_t i = done; i < end; ++i) {
      const float moved = std::fabs(after[i] - before[i]);
      row += moved;
      most = std::max(most, moved);
    }
    sum += row;
    largest = std::max(largest, static_cast<double>(most));
  }
  count += floats;
}

uint64_t QuantizedLayer::Bytes(const KvCacheOptions& shape, const quant::KvFormat& format) {
  return TensorUnitsBytes(shape, format.key) + TensorUnitsBytes(shape, format.value);
}

template <typename Call>
void QuantizedLayer::ForEachBlock(bool value, uint32_t first, uint32_t tokens, Call call) const {
  const quant::TensorFormat& format = value ? format_.value : format_.key;
  std::byte* const units = memory_ + (value ? TensorUnitsBytes(shape_, format_.key) : 0);
  const uint64_t block_bytes = shape_.heads * UnitBytes(format, shape_.head_dim, kBlockTokens);
  for (uint32_t done = 0; done < tokens; done += kBlockTokens) {
    const uint32_t count = std::min(kBlockTokens, tokens - done);
    call(format, units + (first + done) / kBlockTokens * block_bytes, done,
         kernels::UnitRun{.heads = shape_.heads,
                          .dim = shape_.head_dim,
                          .page_tokens = count,
                          .first_token = 0,
                          .tokens = count});
  }
}

void QuantizedLayer::Quantize(bool value, uint32_t first, const TensorBytes& from) {
  const size_t row_bytes = size_t{shape_.head_dim} * quant::DtypeBytes(from.dtype);
  ForEachBlock(value, first, from.tokens,
               [&](const quant::TensorFormat& format, std::byte* units, uint32_t token,
                   const kernels::UnitRun& run) {
                 kernels::Quantize(format,
                                   {.data = from.data + token * row_bytes,
                                    .dtype = from.dtype,
                                    .head_stride = size_t{from.tokens} * shape_.head_dim,
                                    .token_stride = shape_.head_dim},
                                   run, units);
               });
}

void QuantizedLayer::Dequantize(bool value, uint32_t first, const TensorBytes& to) const {
  const size_t row_bytes = size_t{shape_.head_dim} * quant::DtypeBytes(to.dtype);
  ForEachBlock(value, first, to.tokens,
               [&](const quant::TensorFormat& format, const std::byte* units, uint32_t token,
                   const kernels::UnitRun& run) {
                 kernels::Dequantize(format, units, run,
                                     {.data = to.data + token * row_bytes,
                                      .dtype = to.dtype,
                                      .head_stride = size_t{to.tokens} * shape_.head_dim,
                                      .token_stride = shape_.head_dim});
               });
}

uint64_t PayloadBytes(const KvCacheOptions& shape, const quant::KvFormat& format) {
  const uint64_t row = quant::BytesOfStoredRow(format.key, shape.head_dim).total() +
                       quant::BytesOfStoredRow(format.value, shape.head_dim).total();
  return row * shape.heads * shape.seq_len * shape.layers;
}

uint64_t RawBytes(const KvCacheOptions& shape, quant::Dtype dtype) {
  const quant::TensorFormat raw = quant::RawFormat(dtype);
  return PayloadBytes(shape, {raw, raw});
}

}  // namespace prefixd::bench
