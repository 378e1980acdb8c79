// Integers as signed bytes that are multiplied with codes, for one SIMD target: included once per
// target. Compiled only for targets with an instruction that multiplies bytes.
//
// A factor has one digit or two, high * 256 + low. Each digit is a row of bytes of its own.
// Products with codes are exact integers, whichever instructions compute them.
#if defined(PREFIXD_KERNELS_COMMON_DIGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_COMMON_DIGITS_INL_H_
#undef PREFIXD_KERNELS_COMMON_DIGITS_INL_H_
#else
#define PREFIXD_KERNELS_COMMON_DIGITS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Returns the largest factor whose high digit, rounded, is a byte.
constexpr float FactorLimit(uint32_t digits) { return digits == 1 ? 127 : 127 * 256 + 127; }

// Adds the dot of four unsigned and four signed bytes to each lane.
HWY_INLINE VI AddDot(VI sum, VI unsigned_bytes, VI signed_bytes) {
  // No intrinsic: Highway 1.0.3 asks the CPU for AVX512_VNNI here but not the compiler, and GCC's
  // copies registers.
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(unsigned_bytes.raw), "v"(signed_bytes.raw));
  return sum;
}

// Stores the digits of 16 factors, the low digits of two `digit_pitch` bytes later.
HWY_INLINE void StoreDigits(VI factors, uint32_t digits, int8_t* to, size_t digit_pitch) {
  if (digits == 2) {
    const VI high = hn::ShiftRight<8>(hn::Add(factors, hn::Set(DI(), 128)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(high.raw));
    to += digit_pitch;
  }
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(factors.raw));
}

// Factors of a tile's tokens. Named members and not an array: GCC at -O2 keeps arrays of vectors in
// memory.
struct TileFactors {
  VI v0, v1, v2, v3;

  // Stores one digit of each. Returns the factors' sum: a vector whose lanes are still to be added.
  HWY_INLINE VI StoreOne(int8_t* to) const {
    const VI bytes{_mm512_packs_epi16(Early(), Late())};
    // Packing takes 4 numbers of each vector in turns.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes.raw));
    return AddDot(hn::Zero(DI()), hn::Set(DI(), 0x01010101), bytes);
  }
  // Stores two digits of each, the low digits `digit_pitch` bytes later. Returns the same.
  HWY_INLINE VI StoreTwo(int8_t* to, size_t digit_pitch) const {
    const __m512i early = Early(), late = Late();
    const __m512i half = _mm512_set1_epi16(128);
    const __m512i low_digits = LowDigitsInOrder();
    const __m512i high_digits = _mm512_or_si512(low_digits, _mm512_set1_epi8(1));
    _mm512_storeu_si512(to, _mm512_permutex2var_epi8(_mm512_adds_epi16(early, half), high_digits,
                                                     _mm512_adds_epi16(late, half)));
    _mm512_storeu_si512(to + digit_pitch, _mm512_permutex2var_epi8(early, low_digits, late));
    return hn::Add(hn::Add(v0, v1), hn::Add(v2, v3));
  }

 private:
  HWY_INLINE __m512i Early() const { return _mm512_packs_epi32(v0.raw, v1.raw); }
  HWY_INLINE __m512i Late() const { return _mm512_packs_epi32(v2.raw, v3.raw); }
  // Returns where the low bytes of tokens 0, 1, ... stand in packed vectors 0 and 1 and, 64 bytes
  // later, in packed vectors 2 and 3.
  static HWY_INLINE __m512i LowDigitsInOrder() {
    alignas(64) static constexpr uint8_t kOrder[64] = {
        0,  2,  4,  6,  16, 18, 20, 22, 32,  34,  36,  38,  48,  50,  52,  54,
        8,  10, 12, 14, 24, 26, 28, 30, 40,  42,  44,  46,  56,  58,  60,  62,
        64, 66, 68, 70, 80, 82, 84, 86, 96,  98,  100, 102, 112, 114, 116, 118,
        72, 74, 76, 78, 88, 90, 92, 94, 104, 106, 108, 110, 120, 122, 124, 126};
    return _mm512_load_si512(kOrder);
  }
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
