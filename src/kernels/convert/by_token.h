// Conversions a token at a time by the scalar codecs. Internal to kernels/: for formats and targets
// that the vector code does not support.
//
// Thread-safe; they allocate at most one row of floats.
#pragma once
#include <cstddef>

#include "kernels/convert/unit_step.h"
#include "kernels/quantize.h"
#include "quant/unit.h"

namespace prefixd::kernels {

// Returns whether no vector code supports the format.
inline bool IsByToken(const quant::TensorFormat& format) {
  return quant::IsBlockFloat(format.codec) || format.layout == quant::Layout::kTransposed;
}

void QuantizeByToken(const quant::UnitShape& shape, const TensorView& from, const UnitRun& run,
                     std::byte* units);
void DequantizeByToken(const quant::UnitShape& shape, const std::byte* units, const UnitRun& run,
                       const MutableTensorView& to);

// Copy packed rows of the step's tokens into a unit of any layout and out of it.
void StoreByToken(const UnitStep& step, const ConstStepRows& from, std::byte* unit);
void LoadByToken(const UnitStep& step, const std::byte* unit, const StepRows& to);

}  // namespace prefixd::kernels
