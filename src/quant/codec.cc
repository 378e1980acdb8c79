#include "quant/codec.h"

#include "quant/row_codecs.h"

namespace prefixd::quant {
namespace {

// One function for const and mutable units.
template <typename Place, typename Byte>
Place PlaceOf(Byte* unit, const UnitLayout& layout, const RowBytes& row, uint32_t token) {
  Place place;
  place.codes = unit + layout.codes_offset + uint64_t{token} * row.codes;
  if (row.scales != 0) place.scales = unit + layout.scales_offset + uint64_t{token} * row.scales;
  if (row.biases != 0) place.biases = unit + layout.biases_offset + uint64_t{token} * row.biases;
  return place;
}

}  // namespace

RowPlace RowOf(std::byte* unit, const UnitLayout& layout, const TensorFormat& format, uint32_t dim,
               uint32_t token) {
  return PlaceOf<RowPlace>(unit, layout, BytesOfStoredRow(format, dim), token);
}

ConstRowPlace RowOf(const std::byte* unit, const UnitLayout& layout, const TensorFormat& format,
                    uint32_t dim, uint32_t token) {
  return PlaceOf<ConstRowPlace>(unit, layout, BytesOfStoredRow(format, dim), token);
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
    case Codec::kMxFp4:
    case Codec::kMxFp8:
    case Codec::kNvFp4:
      return QuantizeBlockFloatRow(format, row, to);
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
    case Codec::kMxFp4:
    case Codec::kMxFp8:
    case Codec::kNvFp4:
      return DequantizeBlockFloatRow(format, from, row);
  }
}

}  // namespace prefixd::quant
