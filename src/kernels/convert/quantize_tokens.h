// Quantize and dequantize runs of units a token at a time by the scalar codecs. Internal to
// kernels/: for formats and targets that the vector code does not support.
//
// Thread-safe; allocates one row of floats.
#pragma once
#include <cstddef>

#include "kernels/quantize.h"
#include "quant/unit.h"

namespace prefixd::kernels {

void QuantizeByToken(const quant::UnitShape& shape, const TensorView& from, const UnitRun& run,
                     std::byte* units);
void DequantizeByToken(const quant::UnitShape& shape, const std::byte* units, const UnitRun& run,
                       const MutableTensorView& to);

}  // namespace prefixd::kernels
