// A tensor of floats and its pages in one format: quantize and dequantize as a worker does, page by
// page.
//
// One thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bench/common/page_store.h"
#include "kernels/quantize.h"
#include "quant/format.h"

namespace prefixd::bench {

// [heads][tokens][dim] standard normal values of one dtype.
class FloatTensor {
 public:
  FloatTensor(quant::Dtype dtype, uint32_t heads, uint32_t tokens, uint32_t dim);
  quant::Dtype dtype() const { return dtype_; }
  uint32_t heads() const { return heads_; }
  uint32_t tokens() const { return tokens_; }
  uint32_t dim() const { return dim_; }
  uint64_t bytes() const { return uint64_t{heads_} * tokens_ * dim_ * quant::DtypeBytes(dtype_); }
  std::byte* data() const { return memory_.data(); }
  // From token `first` on.
  std::byte* at(uint32_t first) const {
    return data() + uint64_t{first} * dim_ * quant::DtypeBytes(dtype_);
  }

 private:
  const quant::Dtype dtype_;
  const uint32_t heads_, tokens_, dim_;
  HugeBytes memory_;
};

// The units of such a tensor, pages of 64 tokens.
class PagedTensor {
 public:
  // Requires: tokens a multiple of 64, quant::Validate(format, dim) is OK.
  PagedTensor(const quant::TensorFormat& format, const FloatTensor& shape);
  void QuantizeFrom(const FloatTensor& from);
  void DequantizeTo(const FloatTensor& to) const;
  // To `to`, the same format in the other layout.
  void RelayoutTo(PagedTensor& to) const;
  // Whether every byte of the first and the last page, tiled ones turned into rows, and what they
  // dequantize to in `values`, is the scalar codec's.
  bool EqualsScalarCodec(const FloatTensor& from, const FloatTensor& values) const;
  std::byte* page(uint32_t index) const { return memory_.data() + index * page_bytes_; }
  uint32_t pages() const { return pages_; }
  uint64_t bytes() const { return pages_ * page_bytes_; }
  kernels::UnitRun run() const;

 private:
  std::vector<std::byte> PageInRows(uint32_t page) const;
  bool PageEqualsScalarCodec(const FloatTensor& from, const FloatTensor& values,
                             uint32_t page) const;
  const quant::TensorFormat format_;
  const uint32_t heads_, dim_, pages_;
  const uint64_t page_bytes_;
  HugeBytes memory_;
};

}  // namespace prefixd::bench
