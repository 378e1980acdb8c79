// Stores numbers as codes of a byte each, for one SIMD target: included once per target.
#if defined(PREFIXD_KERNELS_COMMON_STORE_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_COMMON_STORE_CODES_INL_H_
#undef PREFIXD_KERNELS_COMMON_STORE_CODES_INL_H_
#else
#define PREFIXD_KERNELS_COMMON_STORE_CODES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

inline constexpr size_t kLanes = hn::MaxLanes(DF());

// Store vectors of codes as a uint8_t each: a negative code as 0, one above `most` as `most`.
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
// Packing works within blocks of 16 bytes; one permutation puts the vectors in order.
HWY_INLINE void StoreUnsignedPair(VI a, VI b, uint8_t most, uint8_t* to) {
  const __m512i words = _mm512_packs_epi32(a.raw, b.raw);
  const __m512i bytes = _mm512_packus_epi16(words, words);
  const __m256i order = _mm256_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13);
  const __m512i ordered = _mm512_permutexvar_epi32(_mm512_castsi256_si512(order), bytes);
  const __m256i clamped =
      _mm256_min_epu8(_mm512_castsi512_si256(ordered), _mm256_set1_epi8(static_cast<char>(most)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), clamped);
}
HWY_INLINE void StoreUnsignedQuad(VI a, VI b, VI c, VI d, uint8_t most, uint8_t* to) {
  const __m512i bytes =
      _mm512_packus_epi16(_mm512_packs_epi32(a.raw, b.raw), _mm512_packs_epi32(c.raw, d.raw));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i clamped = _mm512_min_epu8(_mm512_permutexvar_epi32(order, bytes),
                                          _mm512_set1_epi8(static_cast<char>(most)));
  _mm512_storeu_si512(to, clamped);
}
#else
HWY_INLINE void StoreUnsignedPair(VI a, VI b, uint8_t most, uint8_t* to) {
  const auto clamp = hn::Set(DU8(), most);
  hn::StoreU(hn::Min(hn::DemoteTo(DU8(), a), clamp), DU8(), to);
  hn::StoreU(hn::Min(hn::DemoteTo(DU8(), b), clamp), DU8(), to + kLanes);
}
HWY_INLINE void StoreUnsignedQuad(VI a, VI b, VI c, VI d, uint8_t most, uint8_t* to) {
  StoreUnsignedPair(a, b, most, to);
  StoreUnsignedPair(c, d, most, to + 2 * kLanes);
}
#endif

#if PREFIXD_KERNELS_HAVE_PAIRS
// a and b hold the even and the odd elements of the first 32, c and d those of the second 32.
HWY_INLINE void StoreUnsignedPairs(VI a, VI b, VI c, VI d, uint8_t most, uint8_t* to) {
  alignas(64) static constexpr uint8_t kOrder[64] = {
      0,  4,  1,  5,  2,  6,  3,  7,  16, 20, 17, 21, 18, 22, 19, 23, 32, 36, 33, 37, 34, 38,
      35, 39, 48, 52, 49, 53, 50, 54, 51, 55, 8,  12, 9,  13, 10, 14, 11, 15, 24, 28, 25, 29,
      26, 30, 27, 31, 40, 44, 41, 45, 42, 46, 43, 47, 56, 60, 57, 61, 58, 62, 59, 63};
  const __m512i bytes =
      _mm512_packus_epi16(_mm512_packs_epi32(a.raw, b.raw), _mm512_packs_epi32(c.raw, d.raw));
  const __m512i clamped = _mm512_min_epu8(_mm512_permutexvar_epi8(_mm512_load_si512(kOrder), bytes),
                                          _mm512_set1_epi8(static_cast<char>(most)));
  _mm512_storeu_si512(to, clamped);
}
#endif

// Returns the nearest integers, ties to even, of values far below 2^31; NaN and infinities give 0
// or less.
HWY_INLINE VI NearestOfSmall(VF value) {
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
  return VI{_mm512_cvtps_epi32(value.raw)};
#else
  return hn::NearestInt(value);
#endif
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
