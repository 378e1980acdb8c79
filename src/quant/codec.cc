#include "quant/codec.h"

#include <cstring>

#include "quant/row_codecs.h"

namespace prefixd::quant {
namespace {

// The same arithmetic for both constnesses of a unit.
template <typename Place, typename Byte>
Place PlaceOf(Byte* unit, const UnitLayout& layout, const RowBytes& row, uint32_t token) {
  Place place;
  place.codes = unit + layout.codes_offset + uint64_t{token} * row.codes;
  if (row.scales != 0) place.scales = unit + layout.scales_offset + uint64_t{token} * row.scales;
  if (row.biases != 0) place.biases = unit + layout.biases_offset + uint64_t{token} * row.biases;
  return place;
}

void CopyRows(const std::byte* from, std::byte* to, uint32_t row_bytes, uint32_t count) {
  if (row_bytes != 0) std::memcpy(to, from, uint64_t{row_bytes} * count);
}

}  // namespace

RowPlace RowOf(std::byte* unit, const UnitLayout& layout, const TensorFormat& format, uint32_t dim,
               uint32_t token) {
  return PlaceOf<RowPlace>(unit, layout, BytesOfRow(format, dim), token);
}

ConstRowPlace RowOf(const std::byte* unit, const UnitLayout& layout, const TensorFormat& format,
                    uint32_t dim, uint32_t token) {
  return PlaceOf<ConstRowPlace>(unit, layout, BytesOfRow(format, dim), token);
}

void QuantizeRow(const TensorFormat& format, std::span<const float> row, RowPlace to) {
  switch (format.codec) {
    case Codec::kRaw:
      return NarrowFromFloat(format.dtype, row.data(), row.size(), to.codes);
    case Codec::kMlxAffine:
      return QuantizeMlxAffineRow(format, row, to);
    case Codec::kQ4_0:
    case Codec::kQ4_1:
    case Codec::kQ5_0:
    case Codec::kQ5_1:
    case Codec::kQ8_0:
      return QuantizeGgmlRow(format.codec, row, to.codes);
  }
}

void DequantizeRow(const TensorFormat& format, ConstRowPlace from, std::span<float> row) {
  switch (format.codec) {
    case Codec::kRaw:
      return WidenToFloat(format.dtype, from.codes, row.size(), row.data());
    case Codec::kMlxAffine:
      return DequantizeMlxAffineRow(format, from, row);
    case Codec::kQ4_0:
    case Codec::kQ4_1:
    case Codec::kQ5_0:
    case Codec::kQ5_1:
    case Codec::kQ8_0:
      return DequantizeGgmlRow(format.codec, from.codes, row);
  }
}

void CopyTokens(const TensorFormat& format, uint32_t dim, const std::byte* from_unit,
                TokenRange from, std::byte* to_unit, TokenRange to, uint32_t count) {
  const RowBytes row = BytesOfRow(format, dim);
  const ConstRowPlace source = PlaceOf<ConstRowPlace>(
      from_unit, LayoutOfUnit(format, dim, from.page_tokens), row, from.begin);
  const RowPlace target =
      PlaceOf<RowPlace>(to_unit, LayoutOfUnit(format, dim, to.page_tokens), row, to.begin);
  CopyRows(source.codes, target.codes, row.codes, count);
  CopyRows(source.scales, target.scales, row.scales, count);
  CopyRows(source.biases, target.biases, row.biases, count);
}

}  // namespace prefixd::quant
