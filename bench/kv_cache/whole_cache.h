// The KV cache of a whole model in one format: a layer's K and V after the other, cut into blocks
// of 64 tokens, quantized from floats and dequantized again, with the time that each took and how
// far the values moved.
//
// One thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/common/kv_cache_options.h"
#include "bench/common/page_store.h"
#include "quant/format.h"

namespace prefixd::bench {

// Standard normal floats for any layer without making new ones: a layer reads the pool from a place
// of its own, so that its groups are others than those of any other layer.
class FloatPool {
 public:
  // Room for tensors of `floats` elements.
  FloatPool(size_t floats, uint32_t seed);
  const float* tensor(uint32_t index) const { return pool_.data() + index * kStep % kPlaces; }

 private:
  static constexpr size_t kStep = 8191, kPlaces = size_t{1} << 20;
  std::vector<float> pool_;
};

// Sums over values: how far they are from what they were.
struct Distance {
  double sum = 0, largest = 0;
  uint64_t count = 0;
  void Add(const float* before, const float* after, size_t floats);
  double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

struct ConversionTime {
  double quantize_us = 0, dequantize_us = 0;
};

// K or V of some tokens of one layer: [heads][tokens][head_dim] in `dtype`.
struct TensorBytes {
  std::byte* data = nullptr;
  quant::Dtype dtype = quant::Dtype::kF32;
  uint32_t tokens = 0;
};

// The units of one layer's K and V.
class QuantizedLayer {
 public:
  static uint64_t Bytes(const KvCacheOptions& shape, const quant::KvFormat& format);
  // `memory`: Bytes() long, 128-byte aligned.
  QuantizedLayer(const KvCacheOptions& shape, const quant::KvFormat& format, std::byte* memory)
      : shape_(shape), format_(format), memory_(memory) {}
  // Tokens [first, first + tensor.tokens); `first` at a block's begin, the end at one or at
  // seq_len.
  void Quantize(bool value, uint32_t first, const TensorBytes& from);
  void Dequantize(bool value, uint32_t first, const TensorBytes& to) const;

 private:
  template <typename Call>
  void ForEachBlock(bool value, uint32_t first, uint32_t tokens, Call call) const;
  const KvCacheOptions& shape_;
  const quant::KvFormat format_;
  std::byte* const memory_;
};

// Bytes of the whole cache in a format, without padding: what the table calls Memory.
uint64_t PayloadBytes(const KvCacheOptions& shape, const quant::KvFormat& format);
uint64_t RawBytes(const KvCacheOptions& shape, quant::Dtype dtype);

}  // namespace prefixd::bench
