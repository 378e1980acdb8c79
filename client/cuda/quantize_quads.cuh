// The parameters and codes of a quad of tokens whose elements are halves, by few instructions:
// extremes of two halves at a time, one correction of a quotient where that is proven to be enough,
// codes rounded where they are packed. What is seldom (NaN, vast scales) goes another way.
//
// Device functions, called by whole warps where they say so.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "octets.cuh"
#include "quads.cuh"
#include "quantize_common.cuh"

namespace prefixd::cuda {

// --- two halves in a word ---

template <uint8_t kFrom>
struct Halves;
template <>
struct Halves<kF16> {
  using Two = __half2;
};
template <>
struct Halves<kBf16> {
  using Two = __nv_bfloat162;
};

template <uint8_t kFrom>
__device__ __forceinline__ float2 Widened(uint32_t word) {
  if constexpr (kFrom == kBf16) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
  }
}

// Of each of two halves. kKeepsNan: the result is NaN if either is; else NaN gives way to the other
// one.
template <uint8_t kFrom, bool kKeepsNan>
__device__ __forceinline__ uint32_t Most(uint32_t a, uint32_t b) {
  using Two = typename Halves<kFrom>::Two;
  const Two x = *reinterpret_cast<const Two*>(&a), y = *reinterpret_cast<const Two*>(&b);
  const Two most = kKeepsNan ? __hmax2_nan(x, y) : __hmax2(x, y);
  return *reinterpret_cast<const uint32_t*>(&most);
}
template <uint8_t kFrom, bool kKeepsNan>
__device__ __forceinline__ uint32_t Least(uint32_t a, uint32_t b) {
  using Two = typename Halves<kFrom>::Two;
  const Two x = *reinterpret_cast<const Two*>(&a), y = *reinterpret_cast<const Two*>(&b);
  const Two least = kKeepsNan ? __hmin2_nan(x, y) : __hmin2(x, y);
  return *reinterpret_cast<const uint32_t*>(&least);
}

// A word of the largest of eight elements, and of the smallest, negated.
template <uint8_t kFrom, bool kKeepsNan>
__device__ __forceinline__ uint32_t ExtremesOf(const uint4& w) {
  const uint32_t most =
      Most<kFrom, kKeepsNan>(Most<kFrom, kKeepsNan>(w.x, w.y), Most<kFrom, kKeepsNan>(w.z, w.w));
  const uint32_t least = Least<kFrom, kKeepsNan>(Least<kFrom, kKeepsNan>(w.x, w.y),
                                                 Least<kFrom, kKeepsNan>(w.z, w.w)) ^
                         0x80008000u;
  return Most<kFrom, kKeepsNan>(__byte_perm(most, least, 0x5410), __byte_perm(most, least, 0x7632));
}

// Of the group's lanes, for the token whose parameters this lane computes: lane % kTokens, 4 or 8.
// In each of the first steps a lane hands on the tokens that are not its own.
template <uint8_t kFrom, bool kKeepsNan, uint32_t kTokens>
__device__ __forceinline__ float2 OwnExtremes(const uint4 (&words)[kTokens], uint32_t lanes,
                                              uint32_t lane) {
  uint32_t of[kTokens];
#pragma unroll
  for (uint32_t k = 0; k < kTokens; ++k) of[k] = ExtremesOf<kFrom, kKeepsNan>(words[k]);
  const auto further = [](uint32_t own, uint32_t other, uint32_t step) {
    return Most<kFrom, kKeepsNan>(own, __shfl_xor_sync(~0u, other, step));
  };
#pragma unroll
  for (uint32_t step = kTokens / 2; step > 0; step /= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (uint32_t k = 0; k < step; ++k) {
      of[k] = further(upper ? of[k + step] : of[k], upper ? of[k] : of[k + step], step);
    }
  }
  uint32_t most = of[0];
  if (kTokens == 8 && lanes > 8) most = further(most, most, 8);
  return Widened<kFrom>(most);
}

// --- codes ---

// A token's parameters. inverse: 1 / scale, correctly rounded.
struct Parameters {
  float scale = 0, bias = 0, inverse = 0;
  bool usual = false;  // no NaN, and scales for which the quick ways are right
};

// Whether quotients by `scale` have the right integer after one correction. The corrected quotient
// is off by 2^-46 of it before it is rounded. So it can only be wrong beside the middle M of two
// floats next to k + 1/2, for k < 256, if |a - scale * M| < 2^-46 * a. With significands as
// integers, M has 25 bits that end in 16 of 00..01 or 11..11, scale * M has 49, and a is a multiple
// of 2^23 of its last place; so that wants the last 16 bits of scale's significand to be within 8
// of 0; and not 0, since then the exact quotient would have 25 bits. (None of those kept out is
// known to be wrong.)
__device__ __forceinline__ bool OneCorrectionIsEnough(float scale) {
  const uint32_t last = __float_as_uint(scale) & 0xFFFF;
  return last == 0 || (last > 8 && last < 0x10000 - 8);
}

// The float that has the rounded code in its low bits.
__device__ __forceinline__ float AffineCode(float x, const Parameters& p, float max_code) {
  const float a = __fsub_rn(x, p.bias);
  const float q = __fmul_rn(a, p.inverse);
  const float corrected = fmaf(fmaf(-q, p.scale, a), p.inverse, q);
  return __fadd_rn(fminf(corrected, max_code), kRounder);  // at least -1/2, so no code is below 0
}
__device__ __forceinline__ float AffineCodeByDivision(float x, const Parameters& p,
                                                      float max_code) {
  const float code = __fdiv_rn(__fsub_rn(x, p.bias), p.scale);
  return __fadd_rn(fminf(fmaxf(code, 0), max_code), kRounder);
}

// q4_0: the float that has the code in its low bits.
__device__ __forceinline__ float Truncated(float scaled) {
  return __fadd_rz(fminf(__fadd_rn(scaled, 8.5f), 15), 8388608.f);
}
__device__ __forceinline__ float TruncatedByBranches(float scaled) {
  return __uint_as_float(0x4B000000u | TruncatedCode(__fadd_rn(scaled, 8.5f)));
}

// q8_0: the float of a magnitude of 127 at most, which has 128 more than the magnitude in its low
// byte. Halves away from zero; adding a half towards zero never reaches the next integer.
__device__ __forceinline__ float Magnitude(float scaled) {
  return __fadd_rz(__fadd_rz(fabsf(scaled), 0.5f), 8388736.f);
}
__device__ __forceinline__ float MagnitudeByBranches(float scaled) {
  const auto code = static_cast<int8_t>(RoundedCode(scaled));
  return __uint_as_float(0x4B000080u + static_cast<uint32_t>(code < 0 ? -code : code));
}

__device__ __forceinline__ uint32_t FourLowBytes(float a, float b, float c, float d) {
  return __byte_perm(__byte_perm(__float_as_uint(a), __float_as_uint(b), 0x0040),
                     __byte_perm(__float_as_uint(c), __float_as_uint(d), 0x0040), 0x5410);
}
// 0xFF where a float is negative: the instruction repeats a byte's sign, __byte_perm() does not.
__device__ __forceinline__ uint32_t TwoSigns(float a, float b) {
  uint32_t signs;
  asm("prmt.b32 %0, %1, %2, 0xFB;"
      : "=r"(signs)
      : "r"(__float_as_uint(a)), "r"(__float_as_uint(b)));
  return signs;
}
__device__ __forceinline__ uint32_t FourSigns(float a, float b, float c, float d) {
  return __byte_perm(TwoSigns(a, b), TwoSigns(c, d), 0x5410);
}
// Bytes of 128 + magnitude as two's complement: 128 + m - 1 and 0x7F are each other's complement in
// seven bits, and m = 0 becomes 0.
__device__ __forceinline__ uint32_t Signed(uint32_t magnitudes, uint32_t signs) {
  return (magnitudes - (signs & 0x01010101u)) ^ (signs ^ 0x80808080u);
}

// The low bits of eight floats below 2^kBits, from `shift_of(i)` on in a word. `ones`: the bits of
// a float whose low bits are 0.
template <typename ShiftOf>
__device__ __forceinline__ uint32_t Packed(const float (&x)[8], uint32_t ones, ShiftOf shift_of) {
  uint32_t word = 0, too_much = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    word += __float_as_uint(x[i]) << shift_of(i);
    too_much += ones << shift_of(i);
  }
  return word - too_much;
}

// Codes of 4 bits as tiled keys have them: byte i has channels i and i + 4.
__device__ __forceinline__ uint32_t NibblesOf(const float (&x)[8], float zero) {
  return Packed(x, __float_as_uint(zero), [](int i) { return i % 4 * 8 + i / 4 * 4; });
}

// A thread's codes of one token: word 0 alone for up to 4 bits. 8 bits: a byte a channel. 4 bits
// outside of MLX's rows: NibblesOf(). Else MLX's stream.
struct TokenCodes {
  uint32_t word[2] = {0, 0};
};

template <uint32_t kBits, Codes kCodes>
__device__ __forceinline__ TokenCodes PackAffine(const float (&x)[8]) {
  TokenCodes codes;
  const uint32_t zero = __float_as_uint(kRounder);
  if constexpr (kBits == 8) {
    codes.word[0] = FourLowBytes(x[0], x[1], x[2], x[3]);
    codes.word[1] = FourLowBytes(x[4], x[5], x[6], x[7]);
  } else if constexpr (kBits == 4 && kCodes != Codes::kRows) {
    codes.word[0] = NibblesOf(x, kRounder);
  } else if constexpr (kBits <= 4) {
    codes.word[0] = Packed(x, zero, [](int i) { return i * static_cast<int>(kBits); });
  } else {
    uint64_t bits = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) bits |= uint64_t{__float_as_uint(x[i]) - zero} << (i * kBits);
    codes.word[0] = static_cast<uint32_t>(bits);
    codes.word[1] = static_cast<uint32_t>(bits >> 32);
  }
  return codes;
}

template <uint8_t kFrom>
__device__ __forceinline__ void Widen(const uint4& w, float (&x)[8]) {
  const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = Widened<kFrom>(words[i]);
    x[2 * i] = two.x;
    x[2 * i + 1] = two.y;
  }
}

template <uint8_t kFrom, uint32_t kBits, Codes kCodes, bool kUsual>
__device__ __forceinline__ TokenCodes EncodeAffine(const uint4& words, const Parameters& p) {
  constexpr float kMaxCode = static_cast<float>((1u << kBits) - 1);
  float x[8];
  Widen<kFrom>(words, x);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] = kUsual ? AffineCode(x[i], p, kMaxCode) : AffineCodeByDivision(x[i], p, kMaxCode);
  }
  return PackAffine<kBits, kCodes>(x);
}

template <uint8_t kFrom, bool kUsual>
__device__ __forceinline__ TokenCodes EncodeQ4(const uint4& words, float inverse) {
  float x[8];
  Widen<kFrom>(words, x);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float scaled = __fmul_rn(x[i], inverse);
    x[i] = kUsual ? Truncated(scaled) : TruncatedByBranches(scaled);
  }
  return {{NibblesOf(x, 8388608.f), 0}};
}

template <uint8_t kFrom, bool kUsual>
__device__ __forceinline__ TokenCodes EncodeQ8(const uint4& words, float inverse) {
  float x[8], magnitude[8];
  Widen<kFrom>(words, x);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] = __fmul_rn(x[i], inverse);
    magnitude[i] = kUsual ? Magnitude(x[i]) : MagnitudeByBranches(x[i]);
  }
  TokenCodes codes;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* of = x + 4 * half;
    const float* m = magnitude + 4 * half;
    codes.word[half] =
        Signed(FourLowBytes(m[0], m[1], m[2], m[3]), FourSigns(of[0], of[1], of[2], of[3]));
  }
  return codes;
}

template <uint8_t kFrom, uint8_t kCodec, uint32_t kBits, Codes kCodes, bool kUsual>
__device__ __forceinline__ TokenCodes Encode(const uint4& words, const Parameters& p) {
  if constexpr (kCodec == kMlxAffine) return EncodeAffine<kFrom, kBits, kCodes, kUsual>(words, p);
  if constexpr (kCodec == kQ8_0) return EncodeQ8<kFrom, kUsual>(words, p.inverse);
  if constexpr (kCodec == kQ4_0) return EncodeQ4<kFrom, kUsual>(words, p.inverse);
}

// --- parameters ---

// Of the token lane % kTokens. `most` and `less`: of the group, the smallest one negated.
template <uint32_t kBits>
__device__ __forceinline__ Parameters AffineParameters(float most, float less) {
  const Affine fit = FitAffine(-less, most, static_cast<float>((1u << kBits) - 1));
  return {fit.scale, fit.bias, __frcp_rn(fit.scale),
          fabsf(fit.scale) <= 0x1p100f && OneCorrectionIsEnough(fit.scale)};
}

__device__ __forceinline__ Parameters BlockParameters(float d) {
  const float magnitude = fabsf(d);
  return {d, 0, d == 0 ? 0 : __frcp_rn(d),
          (magnitude >= 0x1p-100f && magnitude <= 0x1p100f) || d == 0};
}

// The first element of largest magnitude. Ties with the opposite sign are not rare among halves, so
// that only tokens that have one are looked through.
template <uint8_t kFrom>
__device__ __forceinline__ float OwnWidest(const uint4 (&words)[kQuad], float2 extremes,
                                           uint32_t lane) {
  float own = extremes.x > extremes.y ? extremes.x : extremes.y > 0 ? -extremes.y : 0;
  const uint32_t ties = __ballot_sync(~0u, extremes.x == extremes.y && extremes.x != 0);
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
    if ((ties & 0x11111111u << j) == 0) continue;
    float x[8];
    Widen<kFrom>(words[j], x);
    const float of_token = Widest(x, lane);
    if (lane % kQuad == j) own = of_token;
  }
  return own;
}

// Called by whole warps.
template <uint8_t kFrom, uint8_t kCodec, uint32_t kBits, uint32_t kTokens>
__device__ __forceinline__ Parameters OwnParameters(const uint4 (&words)[kTokens], uint32_t lanes,
                                                    uint32_t lane) {
  float2 extremes = OwnExtremes<kFrom, true>(words, lanes, lane);
  const bool numbers = extremes.x == extremes.x && extremes.y == extremes.y;
  if (__any_sync(~0u, !numbers)) extremes = OwnExtremes<kFrom, false>(words, lanes, lane);
  Parameters own;
  if constexpr (kCodec == kMlxAffine) {
    own = AffineParameters<kBits>(extremes.x, extremes.y);
  } else if constexpr (kCodec == kQ8_0) {
    const float widest = fmaxf(fmaxf(extremes.x, extremes.y), 0);
    own = BlockParameters(__fdiv_rn(widest, 127.0f));
  } else {
    own = BlockParameters(__fdiv_rn(OwnWidest<kFrom>(words, extremes, lane), -8.0f));
  }
  own.usual = __all_sync(~0u, numbers && own.usual);
  return own;
}

}  // namespace prefixd::cuda
