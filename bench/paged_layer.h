// Layers of seeded random K and V as quantized pages of 64 tokens in one piece of memory, as a
// worker's block table would name them.
//
// One thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quant/block_table.h"
#include "quant/format.h"

namespace prefixd::bench {

// 64-byte aligned, zeroed.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t bytes);
  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  size_t size_;
  std::unique_ptr<std::byte[], Free> data_;
};

// [count] standard normal values.
std::vector<float> NormalFloats(size_t count, uint32_t seed);

inline constexpr uint32_t kPageTokens = 64;

struct PagedShape {
  uint32_t layers = 1;
  uint32_t kv_heads = 8;
  uint32_t dim = 128;
  uint32_t tokens = 0;  // a multiple of kPageTokens
};

class PagedLayers {
 public:
  // Requires: quant::Validate(format.key and .value, shape.dim) is OK.
  PagedLayers(const PagedShape& shape, const quant::KvFormat& format);

  quant::BlockTable table(size_t layer) const { return tables_[layer]; }
  std::span<const quant::KvFormat> formats() const { return {&format_, 1}; }
  uint64_t layer_bytes() const { return bytes_.size() / tables_.size(); }

 private:
  const quant::KvFormat format_;
  AlignedBytes bytes_;
  std::vector<std::vector<quant::BlockTableEntry>> tables_;
};

}  // namespace prefixd::bench
