// Online softmax in base 2 and the transpose that lays scores out one token a lane, for one SIMD
// target: included once per target.
#if defined(PREFIXD_KERNELS_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_SOFTMAX_INL_H_
#undef PREFIXD_KERNELS_SOFTMAX_INL_H_
#else
#define PREFIXD_KERNELS_SOFTMAX_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

#include "kernels/attend_slice.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// 2^x for x <= 0, relative error below 4e-7; 0 below the normal range; NaN stays NaN.
HWY_INLINE VF Exp2(VF x) {
  const DF df;
  const VF lowest = hn::Set(df, -126.0f);
  const VF clamped = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
  const VF whole = hn::Round(clamped);
  const VF f = hn::Sub(clamped, whole);
  VF power = hn::MulAdd(hn::Set(df, 1.54035304e-4f), f, hn::Set(df, 1.33335581e-3f));
  power = hn::MulAdd(power, f, hn::Set(df, 9.61812911e-3f));
  power = hn::MulAdd(power, f, hn::Set(df, 5.55041087e-2f));
  power = hn::MulAdd(power, f, hn::Set(df, 2.40226507e-1f));
  power = hn::MulAdd(power, f, hn::Set(df, 6.93147181e-1f));
  power = hn::MulAdd(power, f, hn::Set(df, 1.0f));
  const auto exponent = hn::Add(hn::ConvertTo(DI(), whole), hn::Set(DI(), 127));
  const VF scale = hn::BitCast(df, hn::ShiftLeft<23>(exponent));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), hn::Mul(power, scale));
}

// scores: the first `count` (> 0) become weights, the others of the last vector become 0. Returns
// what the row's earlier weights must be multiplied by.
HWY_INLINE float SoftmaxTile(float* HWY_RESTRICT scores, size_t count, RowState* state) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  VF max = hn::Set(df, state->max);
  for (size_t i = 0; i < count; i += lanes) {
    const auto seen = hn::FirstN(df, count - i);
    max = hn::Max(max, hn::IfThenElse(seen, hn::LoadU(df, scores + i), max));
  }
  max = hn::MaxOfLanes(df, max);
  VF sum = hn::Zero(df);
  for (size_t i = 0; i < count; i += lanes) {
    const auto seen = hn::FirstN(df, count - i);
    const VF weight = hn::IfThenElseZero(seen, Exp2(hn::Sub(hn::LoadU(df, scores + i), max)));
    hn::StoreU(weight, df, scores + i);
    sum = hn::Add(sum, weight);
  }
  const float correction = hn::GetLane(Exp2(hn::Sub(hn::Set(df, state->max), max)));
  state->max = hn::GetLane(max);
  state->sum = state->sum * correction + hn::GetLane(hn::SumOfLanes(df, sum));
  return correction;
}

// One vector of dimension `d` ... of tokens 0, 4, 8, ... : the i-th block of 4 lanes is 4
// dimensions of token 4 * i.
HWY_INLINE VF LoadTokenBlocks(const float* rows, size_t pitch) {
#if HWY_MAX_BYTES >= 64
  const hn::Full128<float> d4;
  const hn::Full256<float> d8;
  const auto low = hn::Combine(d8, hn::LoadU(d4, rows + 4 * pitch), hn::LoadU(d4, rows));
  const auto high =
      hn::Combine(d8, hn::LoadU(d4, rows + 12 * pitch), hn::LoadU(d4, rows + 8 * pitch));
  return hn::Combine(DF(), high, low);
#elif HWY_MAX_BYTES == 32
  const hn::Full128<float> d4;
  return hn::Combine(DF(), hn::LoadU(d4, rows + 4 * pitch), hn::LoadU(d4, rows));
#else
  (void)pitch;
  return hn::LoadU(DF(), rows);
#endif
}

// rows: [16][pitch], dim rounded up to 4 readable. to: [dim rounded up to 4][to_pitch], its first
// 16 columns are written.
HWY_INLINE void TransposeRows(const float* HWY_RESTRICT rows, size_t pitch, size_t dim,
                              float* HWY_RESTRICT to, size_t to_pitch) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t d = 0; d < dim; ++d) {
    for (size_t t = 0; t < 16; ++t) to[d * to_pitch + t] = rows[t * pitch + d];
  }
#else
  const DF df;
  const hn::Repartition<uint64_t, DF> d64;
  const size_t lanes = hn::Lanes(df);
  for (size_t t = 0; t < 16; t += lanes) {
    for (size_t d = 0; d < dim; d += 4) {
      const float* from = rows + t * pitch + d;
      const VF a = LoadTokenBlocks(from, pitch);
      const VF b = LoadTokenBlocks(from + pitch, pitch);
      const VF c = LoadTokenBlocks(from + 2 * pitch, pitch);
      const VF e = LoadTokenBlocks(from + 3 * pitch, pitch);
      const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(df, a, b));
      const auto ce_low = hn::BitCast(d64, hn::InterleaveLower(df, c, e));
      const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(df, a, b));
      const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(df, c, e));
      float* out = to + d * to_pitch + t;
      hn::StoreU(hn::BitCast(df, hn::InterleaveLower(d64, ab_low, ce_low)), df, out);
      hn::StoreU(hn::BitCast(df, hn::InterleaveUpper(d64, ab_low, ce_low)), df, out + to_pitch);
      hn::StoreU(hn::BitCast(df, hn::InterleaveLower(d64, ab_high, ce_high)), df,
                 out + 2 * to_pitch);
      hn::StoreU(hn::BitCast(df, hn::InterleaveUpper(d64, ab_high, ce_high)), df,
                 out + 3 * to_pitch);
    }
  }
#endif
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
