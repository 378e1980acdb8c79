// The SIMD part of Quantize and Dequantize: rows of floats. Internal to kernels/.
//
// Pure functions, thread-safe, any alignment of bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/codec.h"
#include "quant/format.h"

namespace prefixd::kernels {

void WidenRow(quant::Dtype dtype, const std::byte* from, size_t count, float* to);
void NarrowRow(quant::Dtype dtype, const float* from, size_t count, std::byte* to);

// codes: [dim] to work in. Requires: Validate(format, dim) is OK.
void QuantizeOneRow(const quant::TensorFormat& format, const float* row, uint32_t dim,
                    const quant::RowPlace& to, uint8_t* codes);

// Rows `first` ... `first + count - 1` of a unit.
struct RowRange {
  const quant::TensorFormat* format = nullptr;
  const std::byte* unit = nullptr;
  quant::UnitLayout layout;
  quant::RowBytes row;
  uint32_t dim = 0;
  uint32_t first = 0;
  uint32_t count = 0;
};
// What unpacking works in.
struct RowScratch {
  float* scales = nullptr;   // [rows][dim / 32]
  float* biases = nullptr;   // the same
  uint8_t* codes = nullptr;  // [dim]
};
// to: [count][dim].
void DequantizeRowRange(const RowRange& rows, const RowScratch& scratch, float* to);

}  // namespace prefixd::kernels
