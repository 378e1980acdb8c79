// The codec families behind QuantizeRow and DequantizeRow, one file each. Internal to quant/.
//
// Pure functions, thread-safe. Requires everywhere: Validate(format, row.size()) is OK.
#pragma once
#include <span>

#include "quant/codec.h"

namespace prefixd::quant {

void QuantizeMlxAffineRow(const TensorFormat& format, std::span<const float> row, RowPlace to);
void DequantizeMlxAffineRow(const TensorFormat& format, ConstRowPlace from, std::span<float> row);

// The codes are in `codes`; `scales` has a byte for each group.
inline constexpr uint16_t kMxGroup = 32;
inline constexpr uint16_t kNvFp4Group = 16;
void QuantizeBlockFloatRow(const TensorFormat& format, std::span<const float> row, RowPlace to);
void DequantizeBlockFloatRow(const TensorFormat& format, ConstRowPlace from, std::span<float> row);

// Blocks of kGgmlBlock elements, GgmlBlockBytes(codec) bytes each.
inline constexpr uint32_t kGgmlBlock = 32;
uint32_t GgmlBlockBytes(Codec codec);
void QuantizeGgmlRow(Codec codec, std::span<const float> row, std::byte* to);
void DequantizeGgmlRow(Codec codec, const std::byte* from, std::span<float> row);

}  // namespace prefixd::quant
