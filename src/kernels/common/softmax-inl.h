// Online softmax in base 2 and the transpose that lays scores out one token a lane, for one SIMD
// target: included once per target.
#if defined(PREFIXD_KERNELS_COMMON_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_COMMON_SOFTMAX_INL_H_
#undef PREFIXD_KERNELS_COMMON_SOFTMAX_INL_H_
#else
#define PREFIXD_KERNELS_COMMON_SOFTMAX_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/prefill/attend_slice.h"
#include "kernels/prefill/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Returns a * b as the nearest integer if it has at most 17 bits, else garbage.
HWY_INLINE VI RoundedProduct(VF a, VF b) {
  const VF magic = hn::Set(DF(), 0x1.8p23f);  // a sum of this size has no bits for a fraction
  return hn::Sub(hn::BitCast(DI(), hn::MulAdd(a, b, magic)), hn::BitCast(DI(), magic));
}

// Splits x <= 0, raised to -126 where it is lower: it is fraction + log2(scale).
struct PowerOfTwo {
  VF fraction, scale;
};
HWY_INLINE PowerOfTwo SplitPower(VF x) {
  const DF df;
  const VF lowest = hn::Set(df, -126.0f);
  const VF clamped = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
  // A sum of this size has no bits left for a fraction: its low bits are round(x) + 127, which is
  // also the exponent field of a power of 2.
  const VF magic = hn::Set(df, 0x1.8p23f + 127);
  const VF shifted = hn::Add(clamped, magic);
  return {hn::Sub(clamped, hn::Sub(shifted, magic)),
          hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(DI(), shifted)))};
}

// 2^x for x <= 0, relative error below 4e-7, never below 2^-127; NaN stays NaN.
HWY_INLINE VF Exp2(VF x) {
  const DF df;
  const auto [f, scale] = SplitPower(x);
  VF power = hn::MulAdd(hn::Set(df, 1.3276472e-3f), f, hn::Set(df, 9.67554133e-3f));
  power = hn::MulAdd(power, f, hn::Set(df, 5.55071327e-2f));
  power = hn::MulAdd(power, f, hn::Set(df, 2.40221197e-1f));
  power = hn::MulAdd(power, f, hn::Set(df, 6.93146967e-1f));
  power = hn::MulAdd(power, f, hn::Set(df, 1.00000007f));
  return hn::Mul(power, scale);
}

// 2^x - 1 for x <= 0, relative error below 3e-7; NaN stays NaN.
HWY_INLINE VF Exp2LessOne(VF x) {
  const DF df;
  const auto [f, scale] = SplitPower(x);
  VF power = hn::Set(df, 1.52527338e-5f);  // coefficients of the series of 2^x: ln(2)^n / n!
  power = hn::MulAdd(power, f, hn::Set(df, 1.54035304e-4f));
  power = hn::MulAdd(power, f, hn::Set(df, 1.33335581e-3f));
  power = hn::MulAdd(power, f, hn::Set(df, 9.61812911e-3f));
  power = hn::MulAdd(power, f, hn::Set(df, 5.55041087e-2f));
  power = hn::MulAdd(power, f, hn::Set(df, 2.40226507e-1f));
  power = hn::MulAdd(power, f, hn::Set(df, 6.93147181e-1f));
  return hn::MulAdd(scale, hn::Mul(power, f), hn::Sub(scale, hn::Set(df, 1)));
}

// Relative error below 1e-6; NaN stays NaN.
HWY_INLINE VF Tanh(VF x) {
  const DF df;
  constexpr float kTwiceLog2E = 2.88539008f;
  const VF less = Exp2LessOne(hn::Mul(hn::Abs(x), hn::Set(df, -kTwiceLog2E)));
  const VF size = hn::Div(hn::Neg(less), hn::Add(less, hn::Set(df, 2)));
  return hn::CopySign(size, x);
}

// Returns the lanes of `tokens` in the vector that begins at token `first`.
HWY_INLINE hn::Mask<DF> LanesOf(TileTokens tokens, size_t first) {
  const TileTokens bits = tokens >> first;
  uint8_t bytes[sizeof(bits)];
  std::memcpy(bytes, &bits, sizeof(bits));
  return hn::LoadMaskBits(DF(), bytes);
}

// Turns the scores of `tokens` (at least one) into weights, and the others up to the end of the
// last token's vector into 0. Returns the factor for the row's earlier weights.
HWY_INLINE float SoftmaxTile(float* HWY_RESTRICT scores, TileTokens tokens, RowState* state) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  const size_t count = static_cast<size_t>(std::bit_width(tokens));
  VF max = hn::Set(df, state->max);
  for (size_t i = 0; i < count; i += lanes) {
    const auto seen = LanesOf(tokens, i);
    max = hn::Max(max, hn::IfThenElse(seen, hn::LoadU(df, scores + i), max));
  }
  max = hn::MaxOfLanes(df, max);
  VF sum = hn::Zero(df);
  for (size_t i = 0; i < count; i += lanes) {
    const auto seen = LanesOf(tokens, i);
    const VF weight = hn::IfThenElseZero(seen, Exp2(hn::Sub(hn::LoadU(df, scores + i), max)));
    hn::StoreU(weight, df, scores + i);
    sum = hn::Add(sum, weight);
  }
  const float correction = hn::GetLane(Exp2(hn::Sub(hn::Set(df, state->max), max)));
  state->max = hn::GetLane(max);
  state->sum = state->sum * correction + hn::GetLane(hn::SumOfLanes(df, sum));
  return correction;
}

// Loads a vector of tokens 0, 4, 8, ... of `rows`: the i-th 4 lanes are 4 dimensions of token 4i.
template <typename T>
HWY_INLINE hn::Vec<hn::Rebind<T, DF>> LoadTokenBlocks(const T* rows, size_t pitch) {
#if HWY_MAX_BYTES >= 64
  const hn::Full128<T> d4;
  const hn::Full256<T> d8;
  const auto low = hn::Combine(d8, hn::LoadU(d4, rows + 4 * pitch), hn::LoadU(d4, rows));
  const auto high =
      hn::Combine(d8, hn::LoadU(d4, rows + 12 * pitch), hn::LoadU(d4, rows + 8 * pitch));
  return hn::Combine(hn::Rebind<T, DF>(), high, low);
#elif HWY_MAX_BYTES == 32
  const hn::Full128<T> d4;
  return hn::Combine(hn::Rebind<T, DF>(), hn::LoadU(d4, rows + 4 * pitch), hn::LoadU(d4, rows));
#else
  (void)pitch;
  return hn::LoadU(hn::Rebind<T, DF>(), rows);
#endif
}

// Transposes `rows`, [16][pitch], of which dim rounded up to 4 must be readable, to the first 16
// columns of `to`, [dim rounded up to 4][to_pitch].
template <typename T>
HWY_INLINE void TransposeRows(const T* HWY_RESTRICT rows, size_t pitch, size_t dim,
                              T* HWY_RESTRICT to, size_t to_pitch) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t d = 0; d < dim; ++d) {
    for (size_t t = 0; t < 16; ++t) to[d * to_pitch + t] = rows[t * pitch + d];
  }
#else
  const hn::Rebind<T, DF> d;
  const hn::Repartition<uint64_t, DF> d64;
  const size_t lanes = hn::Lanes(d);
  for (size_t t = 0; t < 16; t += lanes) {
    for (size_t k = 0; k < dim; k += 4) {
      const T* from = rows + t * pitch + k;
      const auto a = LoadTokenBlocks(from, pitch);
      const auto b = LoadTokenBlocks(from + pitch, pitch);
      const auto c = LoadTokenBlocks(from + 2 * pitch, pitch);
      const auto e = LoadTokenBlocks(from + 3 * pitch, pitch);
      const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d, a, b));
      const auto ce_low = hn::BitCast(d64, hn::InterleaveLower(d, c, e));
      const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d, a, b));
      const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
      T* out = to + k * to_pitch + t;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_low, ce_low)), d, out);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_low, ce_low)), d, out + to_pitch);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_high, ce_high)), d, out + 2 * to_pitch);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_high, ce_high)), d, out + 3 * to_pitch);
    }
  }
#endif
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
