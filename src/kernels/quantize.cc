#include "kernels/quantize.h"

#include <cstring>

#include "kernels/common/simd_targets.h"
#include "kernels/convert/quantize_tokens.h"
#include "kernels/convert/stream_copy.h"
#include "kernels/convert/unit_step.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize.cc"
#include "hwy/foreach_target.h"  // before the -inl.h files: it includes this file once per target
#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/convert/unit_decode-inl.h"
#include "kernels/convert/unit_encode-inl.h"
#include "kernels/convert/unit_rows-inl.h"
#include "kernels/convert/unit_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// Vectors of one lane are no better than the scalar codecs.
HWY_ATTR void QuantizeOnTarget(const quant::UnitShape& shape, const TensorView& from,
                               const UnitRun& run, std::byte* units) {
  QuantizeByToken(shape, from, run, units);
}

HWY_ATTR void DequantizeOnTarget(const quant::UnitShape& shape, const std::byte* units,
                                 const UnitRun& run, const MutableTensorView& to) {
  DequantizeByToken(shape, units, run, to);
}

#else

// --- raw elements

HWY_INLINE void QuantizeRaw(const UnitStep& step, quant::Dtype dtype, const ElementRows& from,
                            float* floats, std::byte* unit) {
  const quant::Dtype stored = step.shape.format.dtype;
  const size_t dim = step.shape.dim, row_bytes = dim * quant::DtypeBytes(stored);
  for (size_t t = 0; t < step.count; ++t) {
    std::byte* to = unit + (step.first + t) * row_bytes;
    const std::byte* row = from.first + t * from.stride;
    if (dtype == stored) {
      std::memcpy(to, row, row_bytes);
    } else {
      Widen(dtype, row, dim, floats);
      Narrow(stored, floats, dim, to);
    }
  }
}

HWY_INLINE void DequantizeRaw(const UnitStep& step, const std::byte* unit, float* floats,
                              quant::Dtype dtype, const MutableElementRows& to) {
  const quant::Dtype stored = step.shape.format.dtype;
  const size_t dim = step.shape.dim, row_bytes = dim * quant::DtypeBytes(stored);
  for (size_t t = 0; t < step.count; ++t) {
    const std::byte* from = unit + (step.first + t) * row_bytes;
    std::byte* row = to.first + t * to.stride;
    if (dtype == stored) {
      std::memcpy(row, from, row_bytes);
    } else {
      Widen(stored, from, dim, floats);
      Narrow(dtype, floats, dim, row);
    }
  }
}

// --- codes

HWY_INLINE bool IsTiled(const UnitStep& step) {
  return step.shape.format.layout == quant::Layout::kTiled;
}
// MLX's rows hold scales and biases in the order of Parts, and at 8 bits codes too.
HWY_INLINE bool IsMlxRows(const UnitStep& step) {
  return step.shape.format.codec == quant::Codec::kMlxAffine && !IsTiled(step);
}

HWY_INLINE void QuantizeCodes(const UnitStep& step, quant::Dtype dtype, const ElementRows& from,
                              Parts parts, std::byte* unit, PendingLines* pending) {
  if (IsTiled(step)) {
    EncodeStep(step, dtype, from, parts, pending);
    return StoreTiles(step, {parts.codes, parts.scales, parts.biases}, unit);
  }
  const StepRows rows = RowsInUnit(step, unit);
  if (!IsMlxRows(step)) {
    EncodeStep(step, dtype, from, parts, pending);
    return StoreRows(step, {parts.codes, parts.scales, parts.biases}, rows);
  }
  const uint8_t bits = step.shape.format.bits;
  parts.scales = rows.scales;
  parts.biases = rows.biases;
  if (bits == 8) parts.codes = reinterpret_cast<uint8_t*>(rows.codes);
  EncodeStep(step, dtype, from, parts, pending);
  if (bits != 8) PackCodes(bits, parts.codes, size_t{step.count} * step.shape.dim, rows.codes);
}

HWY_INLINE ConstParts LoadCodes(const UnitStep& step, const std::byte* unit, const Parts& parts) {
  if (IsTiled(step)) {
    LoadTiles(step, unit, parts);
    return {parts.codes, parts.scales, parts.biases};
  }
  const ConstStepRows rows = RowsInUnit(step, unit);
  if (!IsMlxRows(step)) {
    LoadRows(step, rows, parts);
    return {parts.codes, parts.scales, parts.biases};
  }
  const uint8_t bits = step.shape.format.bits;
  if (bits == 8) return {reinterpret_cast<const uint8_t*>(rows.codes), rows.scales, rows.biases};
  UnpackCodes(bits, rows.codes, size_t{step.count} * step.shape.dim, parts.codes);
  return {parts.codes, rows.scales, rows.biases};
}

HWY_INLINE void DequantizeCodes(const UnitStep& step, const std::byte* unit,
                                const StepMemory& memory, const ElementOutput& output,
                                const MutableElementRows& to) {
  const ConstParts parts = LoadCodes(step, unit, memory.parts());
  if (DecodesHalves(step.shape.format, output.dtype)) {
    return DecodeHalfRows(step, parts, output.stream, to);
  }
  const quant::Dtype dtype = step.shape.format.dtype;
  const size_t count = step.count * step.groups();
  Widen(dtype, parts.scales, count, memory.scales());
  if (step.has_biases()) Widen(dtype, parts.biases, count, memory.biases());
  DecodeStep(step, parts.codes, {memory.scales(), memory.biases()}, output, to);
}

// --- whole runs

HWY_ATTR void QuantizeOnTarget(const quant::UnitShape& shape, const TensorView& from,
                               const UnitRun& run, std::byte* units) {
  const size_t element = quant::DtypeBytes(from.dtype);
  const StepMemory memory(run.dim, run.tokens);
  UnitOutput output(shape, run);
  for (uint32_t head = 0; head < run.heads; ++head, units += quant::LayoutOf(shape).unit_bytes) {
    const std::byte* data = from.data + head * from.head_stride * element;
    std::byte* const unit = output.Begin(units);
    ForEachStep(shape, run.first_token, run.tokens, [&](const UnitStep& step, size_t at) HWY_ATTR {
      const ElementRows rows{data + at * from.token_stride * element, from.token_stride * element};
      if (shape.format.codec == quant::Codec::kRaw) {
        QuantizeRaw(step, from.dtype, rows, memory.row(), unit);
      } else {
        QuantizeCodes(step, from.dtype, rows, memory.parts(), unit, output.pending());
      }
    });
    output.End(units);
  }
}

// A result this large is out of the caches before it is read: it is streamed even if the run does
// not ask for it.
inline constexpr size_t kStreamedBytes = size_t{16} << 20;

HWY_INLINE bool CanStream(const UnitRun& run, const MutableTensorView& to) {
  const size_t element = quant::DtypeBytes(to.dtype);
  const size_t bytes = size_t{run.heads} * run.tokens * run.dim * element;
  const size_t strides = (to.head_stride | to.token_stride) * element;
  const size_t pair = 2 * hn::Lanes(DF()) * element;
  return (run.stream || bytes >= kStreamedBytes) &&
         (reinterpret_cast<uintptr_t>(to.data) | strides) % pair == 0;
}

HWY_ATTR void DequantizeOnTarget(const quant::UnitShape& shape, const std::byte* units,
                                 const UnitRun& run, const MutableTensorView& to) {
  const size_t element = quant::DtypeBytes(to.dtype);
  const StepMemory memory(run.dim, run.tokens);
  const ElementOutput output{.dtype = to.dtype, .stream = CanStream(run, to)};
  for (uint32_t head = 0; head < run.heads; ++head, units += quant::LayoutOf(shape).unit_bytes) {
    std::byte* data = to.data + head * to.head_stride * element;
    ForEachStep(shape, run.first_token, run.tokens, [&](const UnitStep& step, size_t at) HWY_ATTR {
      MutableElementRows rows{.first = data + at * to.token_stride * element,
                              .stride = to.token_stride * element,
                              .next = {}};
      if (output.stream) rows.next = {units + step.layout.unit_bytes, step.layout.unit_bytes};
      if (shape.format.codec == quant::Codec::kRaw) {
        DequantizeRaw(step, units, memory.row(), to.dtype, rows);
      } else {
        DequantizeCodes(step, units, memory, output, rows);
      }
    });
  }
  if (output.stream) FinishStream();
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace prefixd::kernels {
namespace {

HWY_EXPORT(QuantizeOnTarget);
HWY_EXPORT(DequantizeOnTarget);

// Returns whether only the scalar codecs support the format.
bool IsByToken(const quant::TensorFormat& format) {
  return quant::IsBlockFloat(format.codec) || format.layout == quant::Layout::kTransposed;
}

}  // namespace

void Quantize(const quant::TensorFormat& format, const TensorView& from, const UnitRun& run,
              std::byte* units) {
  if (IsByToken(format)) return QuantizeByToken(ShapeOf(format, run), from, run, units);
  HWY_DYNAMIC_DISPATCH(QuantizeOnTarget)(ShapeOf(format, run), from, run, units);
}

void Dequantize(const quant::TensorFormat& format, const std::byte* units, const UnitRun& run,
                const MutableTensorView& to) {
  if (IsByToken(format)) return DequantizeByToken(ShapeOf(format, run), units, run, to);
  HWY_DYNAMIC_DISPATCH(DequantizeOnTarget)(ShapeOf(format, run), units, run, to);
}

}  // namespace prefixd::kernels
#endif  // HWY_ONCE
