// Stored codes of any format with integer codes, a byte each, and their parameters, for one SIMD
// target: included once per target.
#if defined(PREFIXD_KERNELS_CONVERT_UNIT_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CONVERT_UNIT_CODES_INL_H_
#undef PREFIXD_KERNELS_CONVERT_UNIT_CODES_INL_H_
#else
#define PREFIXD_KERNELS_CONVERT_UNIT_CODES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/convert/unit_rows-inl.h"
#include "kernels/convert/unit_step.h"
#include "kernels/convert/unit_tiles-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

HWY_INLINE bool IsTiled(const UnitStep& step) {
  return step.shape.format.layout == quant::Layout::kTiled;
}
// MLX's rows hold scales and biases in the order of Parts, and at 8 bits codes too.
HWY_INLINE bool IsMlxRows(const UnitStep& step) {
  return step.shape.format.codec == quant::Codec::kMlxAffine && !IsTiled(step);
}

// Returns the step's parts: in place where the unit has them so, else in `memory`.
inline HWY_ATTR ConstParts LoadCodes(const UnitStep& step, const std::byte* unit,
                                     const Parts& memory) {
  if (IsTiled(step)) {
    LoadTiles(step, unit, memory);
    return {memory.codes, memory.scales, memory.biases};
  }
  const ConstStepRows rows = RowsInUnit(step, unit);
  if (!IsMlxRows(step)) {
    LoadRows(step, rows, memory);
    return {memory.codes, memory.scales, memory.biases};
  }
  const uint8_t bits = step.shape.format.bits;
  if (bits == 8) return {reinterpret_cast<const uint8_t*>(rows.codes), rows.scales, rows.biases};
  UnpackCodes(bits, rows.codes, size_t{step.count} * step.shape.dim, memory.codes);
  return {memory.codes, rows.scales, rows.biases};
}

// Widens a step's scales and biases to memory.scales() and memory.biases(), [count][groups].
HWY_INLINE StepFloats WidenParameters(const UnitStep& step, const ConstParts& parts,
                                      const StepMemory& memory) {
  const quant::Dtype dtype = step.shape.format.scale_dtype;
  const size_t count = step.count * step.groups();
  Widen(dtype, parts.scales, count, memory.scales());
  if (step.has_biases()) Widen(dtype, parts.biases, count, memory.biases());
  return {memory.scales(), memory.biases()};
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
