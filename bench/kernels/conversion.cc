#include "bench/kernels/conversion.h"

#include <algorithm>
#include <cstring>

#include "bench/common/kv_pages.h"
#include "bench/common/reference_loops.h"
#include "kernels/relayout.h"
#include "quant/codec.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kPageTokens = 64;

}  // namespace

FloatTensor::FloatTensor(quant::Dtype dtype, uint32_t heads, uint32_t tokens, uint32_t dim)
    : dtype_(dtype), heads_(heads), tokens_(tokens), dim_(dim), memory_(bytes()) {
  constexpr size_t kPiece = 1 << 17;  // floats; their number is not a multiple of a row's
  const std::vector<float> floats = NormalFloats(kPiece + 1, 4);
  const size_t count = size_t{heads} * tokens * dim;
  for (size_t done = 0; done < count; done += floats.size()) {
    quant::NarrowFromFloat(dtype, floats.data(), std::min(floats.size(), count - done),
                           data() + done * quant::DtypeBytes(dtype));
  }
}

PagedTensor::PagedTensor(const quant::TensorFormat& format, const FloatTensor& shape)
    : format_(format),
      heads_(shape.heads()),
      dim_(shape.dim()),
      pages_(shape.tokens() / kPageTokens),
      page_bytes_(heads_ * quant::LayoutOfUnit(format, dim_, kPageTokens).unit_bytes),
      memory_(bytes()) {}

kernels::UnitRun PagedTensor::run() const {
  return {.heads = heads_,
          .dim = dim_,
          .page_tokens = kPageTokens,
          .first_token = 0,
          .tokens = kPageTokens,
          .stream = true};
}

void PagedTensor::QuantizeFrom(const FloatTensor& from) {
  for (uint32_t i = 0; i < pages_; ++i) {
    kernels::Quantize(format_,
                      {.data = from.at(i * kPageTokens),
                       .dtype = from.dtype(),
                       .head_stride = size_t{from.tokens()} * dim_,
                       .token_stride = dim_},
                      run(), page(i));
  }
}

void PagedTensor::DequantizeTo(const FloatTensor& to) const {
  for (uint32_t i = 0; i < pages_; ++i) {
    kernels::Dequantize(format_, page(i), run(),
                        {.data = to.at(i * kPageTokens),
                         .dtype = to.dtype(),
                         .head_stride = size_t{to.tokens()} * dim_,
                         .token_stride = dim_});
  }
}

void PagedTensor::RelayoutTo(PagedTensor& to) const {
  for (uint32_t i = 0; i < pages_; ++i) kernels::Relayout(format_, page(i), run(), to.page(i));
}

std::vector<std::byte> PagedTensor::PageInRows(uint32_t index) const {
  if (format_.layout == quant::Layout::kRows) return {page(index), page(index) + page_bytes_};
  std::vector<std::byte> rows(page_bytes_);
  kernels::Relayout(format_, page(index), run(), rows.data());
  return rows;
}

bool PagedTensor::EqualsScalarCodec(const FloatTensor& from, const FloatTensor& values) const {
  return PageEqualsScalarCodec(from, values, 0) && PageEqualsScalarCodec(from, values, pages_ - 1);
}

bool PagedTensor::PageEqualsScalarCodec(const FloatTensor& from, const FloatTensor& values,
                                        uint32_t page_index) const {
  quant::TensorFormat rows = format_;
  rows.layout = quant::Layout::kRows;
  const quant::UnitLayout layout = quant::LayoutOfUnit(rows, dim_, kPageTokens);
  const size_t row_bytes = size_t{dim_} * quant::DtypeBytes(from.dtype());
  std::vector<std::byte> expected(page_bytes_), narrow(row_bytes);
  std::vector<float> row(dim_);
  for (uint32_t head = 0; head < heads_; ++head) {
    for (uint32_t token = 0; token < kPageTokens; ++token) {
      const size_t at =
          (size_t{head} * from.tokens() + page_index * kPageTokens + token) * row_bytes;
      std::byte* const unit = expected.data() + head * layout.unit_bytes;
      const quant::RowPlace place = quant::RowOf(unit, layout, rows, dim_, token);
      quant::WidenToFloat(from.dtype(), from.data() + at, dim_, row.data());
      quant::QuantizeRow(rows, row, place);
      quant::DequantizeRow(rows, {place.codes, place.scales, place.biases}, row);
      quant::NarrowFromFloat(values.dtype(), row.data(), dim_, narrow.data());
      if (!SameBytes(narrow.data(), values.data() + at, row_bytes)) return false;
    }
  }
  return SameBytes(expected.data(), PageInRows(page_index).data(), page_bytes_);
}

}  // namespace prefixd::bench
