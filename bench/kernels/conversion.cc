#include "bench/kernels/conversion.h"

#include <algorithm>
#include <cmath>
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
  Fill(0);
}

void FloatTensor::Fill(uint64_t place) {
  constexpr size_t kPiece = (1 << 17) + 1;  // not a multiple of a row's
  static const std::vector<float> floats = NormalFloats(kPiece, 4);
  size_t from = place * 8191 % kPiece;
  for (size_t done = 0; done < count();) {
    const size_t piece = std::min(kPiece - from, count() - done);
    quant::NarrowFromFloat(dtype_, floats.data() + from, piece,
                           data() + done * quant::DtypeBytes(dtype_));
    done += piece;
    from = 0;
  }
}

std::vector<float> FloatTensor::Values(size_t first, size_t count) const {
  std::vector<float> values(count);
  quant::WidenToFloat(dtype_, data() + first * quant::DtypeBytes(dtype_), count, values.data());
  return values;
}

void Distance::Add(const FloatTensor& before, const FloatTensor& after) {
  constexpr size_t kPiece = 4096;
  for (size_t done = 0; done < before.count(); done += kPiece) {
    const size_t piece = std::min(kPiece, before.count() - done);
    const std::vector<float> a = before.Values(done, piece), b = after.Values(done, piece);
    for (size_t i = 0; i < piece; ++i) {
      const double moved = std::fabs(static_cast<double>(a[i]) - b[i]);
      sum += moved;
      squares += moved * moved;
      largest = std::max(largest, moved);
    }
  }
  count += before.count();
}

PagedTensor::PagedTensor(const quant::TensorFormat& format, const TensorShape& shape)
    : format_(format),
      shape_(shape),
      pages_((shape.tokens + kPageTokens - 1) / kPageTokens),
      page_bytes_(shape.heads * quant::LayoutOfUnit(format, shape.dim, kPageTokens).unit_bytes),
      memory_(bytes()) {}

kernels::UnitRun PagedTensor::RunOf(uint32_t tokens) const {
  return {.heads = shape_.heads,
          .dim = shape_.dim,
          .page_tokens = tokens,
          .first_token = 0,
          .tokens = tokens,
          .stream = true};
}

template <typename Call>
void PagedTensor::ForEachPage(uint32_t first, uint32_t tokens, Call call) const {
  tokens = std::min(tokens, shape_.tokens - first);
  for (uint32_t done = 0; done < tokens; done += kPageTokens) {
    const uint32_t count = std::min(kPageTokens, tokens - done);
    call(page((first + done) / kPageTokens), done, RunOf(count));
  }
}

void PagedTensor::QuantizeFrom(const FloatTensor& from, uint32_t first) {
  ForEachPage(first, from.tokens(), [&](std::byte* units, uint32_t token, const auto& run) {
    kernels::Quantize(format_,
                      {.data = from.at(token),
                       .dtype = from.dtype(),
                       .head_stride = size_t{from.tokens()} * shape_.dim,
                       .token_stride = shape_.dim},
                      run, units);
  });
}

void PagedTensor::DequantizeTo(const FloatTensor& to, uint32_t first) const {
  ForEachPage(first, to.tokens(), [&](const std::byte* units, uint32_t token, const auto& run) {
    kernels::Dequantize(format_, units, run,
                        {.data = to.at(token),
                         .dtype = to.dtype(),
                         .head_stride = size_t{to.tokens()} * shape_.dim,
                         .token_stride = shape_.dim});
  });
}

void PagedTensor::RelayoutTo(PagedTensor& to) const {
  for (uint32_t i = 0; i < pages_; ++i) {
    kernels::Relayout(format_, page(i), RunOf(kPageTokens), to.page(i));
  }
}

std::vector<std::byte> PagedTensor::PageInRows(uint32_t index) const {
  if (format_.layout == quant::Layout::kRows) return {page(index), page(index) + page_bytes_};
  std::vector<std::byte> rows(page_bytes_);
  kernels::Relayout(format_, page(index), RunOf(kPageTokens), rows.data());
  return rows;
}

bool PagedTensor::EqualsScalarCodec(const FloatTensor& from, const FloatTensor& values) const {
  return PageEqualsScalarCodec(from, values, 0) && PageEqualsScalarCodec(from, values, pages_ - 1);
}

bool PagedTensor::PageEqualsScalarCodec(const FloatTensor& from, const FloatTensor& values,
                                        uint32_t page_index) const {
  quant::TensorFormat rows = format_;
  rows.layout = quant::Layout::kRows;
  const uint32_t dim = shape_.dim;
  const quant::UnitLayout layout = quant::LayoutOfUnit(rows, dim, kPageTokens);
  const size_t row_bytes = size_t{dim} * quant::DtypeBytes(from.dtype());
  std::vector<std::byte> expected(page_bytes_), narrow(row_bytes);
  for (uint32_t head = 0; head < shape_.heads; ++head) {
    for (uint32_t token = 0; token < kPageTokens; ++token) {
      const size_t at = size_t{head} * from.tokens() + page_index * kPageTokens + token;
      std::byte* const unit = expected.data() + head * layout.unit_bytes;
      const quant::RowPlace place = quant::RowOf(unit, layout, rows, dim, token);
      std::vector<float> row = from.Values(at * dim, dim);
      quant::QuantizeRow(rows, row, place);
      quant::DequantizeRow(rows, {place.codes, place.scales, place.biases}, row);
      quant::NarrowFromFloat(values.dtype(), row.data(), dim, narrow.data());
      if (!SameBytes(narrow.data(), values.data() + at * row_bytes, row_bytes)) return false;
    }
  }
  return SameBytes(expected.data(), PageInRows(page_index).data(), page_bytes_);
}

}  // namespace prefixd::bench
