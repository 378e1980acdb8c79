#include "kernels/quantize_rows.h"

#include <cmath>
#include <span>

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize_rows.cc"
#include "hwy/foreach_target.h"  // before the -inl.h files: it includes this file once per target
#include "hwy/highway.h"

#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

struct Affine {
  float scale = 0;
  float bias = 0;
};

// The steps of quant/mlx_affine.cc. The order in which a minimum is taken does not matter.
HWY_INLINE Affine FitAffine(const float* group, size_t count, float max_code) {
  const DF df;
  VF low = hn::LoadU(df, group);
  VF high = low;
  for (size_t i = hn::Lanes(df); i < count; i += hn::Lanes(df)) {
    const VF x = hn::LoadU(df, group + i);
    low = hn::Min(low, x);
    high = hn::Max(high, x);
  }
  const float least = hn::GetLane(hn::MinOfLanes(df, low));
  const float most = hn::GetLane(hn::MaxOfLanes(df, high));
  const bool negative_edge = std::fabs(least) > std::fabs(most);
  const float step = std::fmax((most - least) / max_code, 1e-7f);
  const float edge = negative_edge ? least : most;
  const float scale = negative_edge ? step : -step;
  const float zero_code = std::rint(edge / scale);
  if (zero_code == 0) return {scale, 0};
  return {edge / zero_code, edge};
}

HWY_INLINE void EncodeAffine(const float* group, size_t count, Affine affine, float max_code,
                             uint8_t* codes) {
  const DF df;
  const VF scale = hn::Set(df, affine.scale);
  const VF bias = hn::Set(df, affine.bias);
  const VF most = hn::Set(df, max_code);
  for (size_t i = 0; i < count; i += hn::Lanes(df)) {
    const VF code = hn::Round(hn::Div(hn::Sub(hn::LoadU(df, group + i), bias), scale));
    // Also turns NaN into 0.
    const VF positive = hn::IfThenElseZero(hn::Gt(code, hn::Zero(df)), code);
    hn::StoreU(hn::DemoteTo(DU8(), hn::ConvertTo(DI(), hn::Min(positive, most))), DU8(), codes + i);
  }
}

HWY_ATTR void QuantizeAffine(const quant::TensorFormat& format, const float* row, uint32_t dim,
                             const quant::RowPlace& to, uint8_t* codes) {
  const float max_code = static_cast<float>((1u << format.bits) - 1);
  const size_t parameter_bytes = quant::DtypeBytes(format.scale_dtype);
  for (size_t begin = 0; begin < dim; begin += format.group_size) {
    const Affine affine = FitAffine(row + begin, format.group_size, max_code);
    EncodeAffine(row + begin, format.group_size, affine, max_code, codes + begin);
    const size_t at = begin / format.group_size * parameter_bytes;
    quant::NarrowFromFloat(format.scale_dtype, &affine.scale, 1, to.scales + at);
    quant::NarrowFromFloat(format.scale_dtype, &affine.bias, 1, to.biases + at);
  }
  StoreAffineCodes(format.bits, codes, dim, to.codes);
}

// ggml's q8_0: halves are rounded away from zero, what no int8 holds becomes 0.
HWY_INLINE void EncodeByteBlock(const float* x, std::byte* to) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  VF widest = hn::Zero(df);
  for (size_t i = 0; i < 32; i += lanes) widest = hn::Max(widest, hn::Abs(hn::LoadU(df, x + i)));
  const float d = hn::GetLane(hn::MaxOfLanes(df, widest)) / 127.0f;
  quant::NarrowFromFloat(quant::Dtype::kF16, &d, 1, to);
  const VF inverse = hn::Set(df, d != 0 ? 1.0f / d : 0.0f);
  for (size_t i = 0; i < 32; i += lanes) {
    const VF value = hn::Mul(hn::LoadU(df, x + i), inverse);
    const VF whole = hn::Trunc(value);
    const auto away = hn::Ge(hn::Abs(hn::Sub(value, whole)), hn::Set(df, 0.5f));
    const VF one = hn::CopySign(hn::Set(df, 1.0f), value);
    const VF rounded = hn::Add(whole, hn::IfThenElseZero(away, one));
    const auto fits = hn::Le(hn::Abs(rounded), hn::Set(df, 127.5f));
    hn::StoreU(hn::DemoteTo(DI8(), hn::ConvertTo(DI(), hn::IfThenElseZero(fits, rounded))), DI8(),
               reinterpret_cast<int8_t*>(to + 2 + i));
  }
}

HWY_ATTR void QuantizeRowOnTarget(const quant::TensorFormat& format, const float* row, uint32_t dim,
                                  const quant::RowPlace& to, uint8_t* codes) {
  switch (format.codec) {
    case quant::Codec::kRaw:
      return Narrow(format.dtype, row, dim, to.codes);
    case quant::Codec::kMlxAffine:
      return QuantizeAffine(format, row, dim, to, codes);
    case quant::Codec::kQ8_0:
      for (size_t i = 0; i < dim; i += 32) EncodeByteBlock(row + i, to.codes + i / 32 * 34);
      return;
    case quant::Codec::kQ4_0:
    case quant::Codec::kQ4_1:
    case quant::Codec::kQ5_0:
    case quant::Codec::kQ5_1:
      return quant::QuantizeRow(format, {row, dim}, to);
  }
}

HWY_ATTR void DequantizeRangeOnTarget(const RowRange& rows, const RowScratch& scratch, float* to) {
  const bool affine = rows.format->codec == quant::Codec::kMlxAffine;
  if (affine && rows.format->dtype == quant::Dtype::kBf16) {
    return DequantizeRows<RoundToBf16>(rows, scratch, to, rows.dim);
  }
  if (affine && rows.format->dtype == quant::Dtype::kF16) {
#if PREFIXD_KERNELS_HAVE_F16C
    return DequantizeRows<RoundToHalf>(rows, scratch, to, rows.dim);
#else
    for (uint32_t t = 0; t < rows.count; ++t) {
      quant::DequantizeRow(
          *rows.format,
          quant::RowOf(rows.unit, rows.layout, *rows.format, rows.dim, rows.first + t),
          {to + size_t{t} * rows.dim, rows.dim});
    }
    return;
#endif
  }
  DequantizeRows<RoundToFloat>(rows, scratch, to, rows.dim);
}

HWY_ATTR void WidenOnTarget(quant::Dtype dtype, const std::byte* from, size_t count, float* to) {
  Widen(dtype, from, count, to);
}
HWY_ATTR void NarrowOnTarget(quant::Dtype dtype, const float* from, size_t count, std::byte* to) {
  Narrow(dtype, from, count, to);
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace prefixd::kernels {
namespace {

HWY_EXPORT(QuantizeRowOnTarget);
HWY_EXPORT(DequantizeRangeOnTarget);
HWY_EXPORT(WidenOnTarget);
HWY_EXPORT(NarrowOnTarget);

}  // namespace

void WidenRow(quant::Dtype dtype, const std::byte* from, size_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(WidenOnTarget)(dtype, from, count, to);
}

void NarrowRow(quant::Dtype dtype, const float* from, size_t count, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(NarrowOnTarget)(dtype, from, count, to);
}

void QuantizeOneRow(const quant::TensorFormat& format, const float* row, uint32_t dim,
                    const quant::RowPlace& to, uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(QuantizeRowOnTarget)(format, row, dim, to, codes);
}

void DequantizeRowRange(const RowRange& rows, const RowScratch& scratch, float* to) {
  HWY_DYNAMIC_DISPATCH(DequantizeRangeOnTarget)(rows, scratch, to);
}

}  // namespace prefixd::kernels
#endif  // HWY_ONCE
