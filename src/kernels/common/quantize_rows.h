// Stored rows on their way to floats. Internal to kernels/.
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/codec.h"
#include "quant/format.h"

namespace prefixd::kernels {

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
// Working memory of unpacking.
struct RowScratch {
  float* scales = nullptr;   // [rows][dim / 32]
  float* biases = nullptr;   // the same
  uint8_t* codes = nullptr;  // [dim]
};

}  // namespace prefixd::kernels
