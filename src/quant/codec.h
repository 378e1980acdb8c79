// Scalar reference codecs: the definition of every stored byte, checked against the golden vectors
// of MLX and ggml. kernels/ computes the same faster and is compared with these.
//
// Pure functions, thread-safe. They do not look for NaN and infinity: a group that holds one
// dequantizes to NaN or garbage within that group and no further.
//
// Every float operation rounds separately: build with -ffp-contract=off, since a fused multiply-add
// gives other bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/format.h"

namespace prefixd::quant {

// IEEE half and bfloat16 conversions, round to nearest even. A NaN stays a NaN of the same sign and
// becomes quiet, as x86's F16C does it.
float HalfToFloat(uint16_t half);
uint16_t FloatToHalf(float value);
float Bf16ToFloat(uint16_t bits);
uint16_t FloatToBf16(float value);
// Widens `count` elements of `dtype` at `from` (any alignment).
void WidenToFloat(Dtype dtype, const std::byte* from, size_t count, float* to);
void NarrowFromFloat(Dtype dtype, const float* from, size_t count, std::byte* to);

// Where one token's row lives, in layout rows (any alignment).
struct RowPlace {
  std::byte* codes = nullptr;
  std::byte* scales = nullptr;  // null when the codec has none
  std::byte* biases = nullptr;
};
struct ConstRowPlace {
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
};
// Returns the place of one token's row in a unit. Requires: format.layout is kRows.
RowPlace RowOf(std::byte* unit, const UnitLayout& layout, const TensorFormat& format, uint32_t dim,
               uint32_t token);
ConstRowPlace RowOf(const std::byte* unit, const UnitLayout& layout, const TensorFormat& format,
                    uint32_t dim, uint32_t token);

// `row` has dim floats. f16 and bf16 input is widened first, which is exact. Ignores the layout.
// Requires: Validate(format, row.size()) is OK.
void QuantizeRow(const TensorFormat& format, std::span<const float> row, RowPlace to);
// Writes the values that MLX's CPU backend and ggml's to_float give. For MLX f16 and bf16 these are
// rounded twice in `dtype`, then widened to float.
void DequantizeRow(const TensorFormat& format, ConstRowPlace from, std::span<float> row);

}  // namespace prefixd::quant
