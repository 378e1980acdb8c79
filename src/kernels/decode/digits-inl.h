// Factors of dots as one or two signed bytes each, for one SIMD target: included once per target.
// For CPUs that multiply groups of four bytes.
#if defined(PREFIXD_KERNELS_DECODE_DIGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_DIGITS_INL_H_
#undef PREFIXD_KERNELS_DECODE_DIGITS_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_DIGITS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/decode/dot_input-inl.h"
#include "kernels/decode/job.h"

#if PREFIXD_KERNELS_HAVE_PAIRS || PREFIXD_KERNELS_HAVE_SDOT
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Returns the largest factor of one or two digits. A digit is worth 128 of the next.
HWY_INLINE float CodeLimit(uint32_t digits) { return digits == 1 ? 127.0f : 127.0f * 128; }
HWY_INLINE VI HighDigit(VI factors) {
  return hn::ShiftRight<7>(hn::Add(factors, hn::Set(DI(), 64)));
}
HWY_INLINE VI LowDigit(VI factors, VI high) { return hn::Sub(factors, hn::ShiftLeft<7>(high)); }

HWY_INLINE uint32_t DigitsOf(const DecodeTensor&, uint32_t digits) { return digits; }
constexpr size_t FactorBytes(uint32_t) { return 1; }  // of a digit
// Stores a vector of factors as one or two signed bytes each, `digit_pitch` apart.
HWY_INLINE void StoreFactors(VI factors, uint32_t digits, int8_t* to, size_t digit_pitch) {
  if (digits == 1) return hn::StoreU(hn::DemoteTo(DI8(), factors), DI8(), to);
  const VI high = HighDigit(factors);
  hn::StoreU(hn::DemoteTo(DI8(), high), DI8(), to);
  hn::StoreU(hn::DemoteTo(DI8(), LowDigit(factors, high)), DI8(), to + digit_pitch);
}
// Multiplies dots by 128, before the next digit, which is worth a 128th.
template <size_t kRows, size_t kVectors>
HWY_INLINE void RaiseDots(DotSums<kRows, kVectors>* sums) {
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) sums->of[r][v] = hn::ShiftLeft<7>(sums->of[r][v]);
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
