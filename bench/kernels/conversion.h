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
  // Fills it again: another place begins elsewhere in the same 131,073 values.
  void Fill(uint64_t place);
  quant::Dtype dtype() const { return dtype_; }
  uint32_t heads() const { return heads_; }
  uint32_t tokens() const { return tokens_; }
  uint32_t dim() const { return dim_; }
  size_t count() const { return size_t{heads_} * tokens_ * dim_; }
  uint64_t bytes() const { return count() * quant::DtypeBytes(dtype_); }
  std::byte* data() const { return memory_.data(); }
  // From token `first` on.
  std::byte* at(uint32_t first) const {
    return data() + uint64_t{first} * dim_ * quant::DtypeBytes(dtype_);
  }
  // As f32.
  std::vector<float> Values(size_t first, size_t count) const;

 private:
  const quant::Dtype dtype_;
  const uint32_t heads_, tokens_, dim_;
  HugeBytes memory_;
};

// Sums over values: how far they are from what they were.
struct Distance {
  double sum = 0, squares = 0, largest = 0;
  uint64_t count = 0;
  void Add(const FloatTensor& before, const FloatTensor& after);
  double mean() const { return sum / static_cast<double>(count); }
  double mean_square() const { return squares / static_cast<double>(count); }
};

struct TensorShape {
  uint32_t heads = 0, tokens = 0, dim = 0;
};

// The units of such a tensor, pages of 64 tokens; the last one may have less.
class PagedTensor {
 public:
  // Requires: quant::Validate(format, dim) is OK.
  PagedTensor(const quant::TensorFormat& format, const TensorShape& shape);
  PagedTensor(const quant::TensorFormat& format, const FloatTensor& like)
      : PagedTensor(format, {like.heads(), like.tokens(), like.dim()}) {}
  // As many tokens of `from` as there are from `first` on in this. Requires: `first` begins a page.
  void QuantizeFrom(const FloatTensor& from, uint32_t first = 0);
  void DequantizeTo(const FloatTensor& to, uint32_t first = 0) const;
  // To `to`, the same format in the other layout.
  void RelayoutTo(PagedTensor& to) const;
  // Whether every byte of the first and the last page, tiled ones turned into rows, and what they
  // dequantize to in `values`, is the scalar codec's. Requires: whole pages.
  bool EqualsScalarCodec(const FloatTensor& from, const FloatTensor& values) const;
  std::byte* page(uint32_t index) const { return memory_.data() + index * page_bytes_; }
  uint64_t bytes() const { return pages_ * page_bytes_; }
  uint64_t memory_bytes() const { return memory_.size(); }

 private:
  template <typename Call>
  void ForEachPage(uint32_t first, uint32_t tokens, Call call) const;
  kernels::UnitRun RunOf(uint32_t tokens) const;
  std::vector<std::byte> PageInRows(uint32_t page) const;
  bool PageEqualsScalarCodec(const FloatTensor& from, const FloatTensor& values,
                             uint32_t page) const;
  const quant::TensorFormat format_;
  const TensorShape shape_;
  const uint32_t pages_;
  const uint64_t page_bytes_;
  HugeBytes memory_;
};

}  // namespace prefixd::bench
