// Dots of stored codes and signed bytes in registers, for one SIMD target: included once per
// target. What dot-inl.h does, with arm64's dot product of signed bytes.
//
// Stored bytes are multiplied less 128, as signed ones. One instruction multiplies a register of
// words by the same word of another: a register of factors is 4 words of one row head.
#if defined(PREFIXD_KERNELS_DECODE_DOT_SIGNED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_DOT_SIGNED_INL_H_
#undef PREFIXD_KERNELS_DECODE_DOT_SIGNED_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_DOT_SIGNED_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/decode/digits-inl.h"
#include "kernels/decode/dot_input-inl.h"
#include "kernels/decode/job.h"

#if PREFIXD_KERNELS_HAVE_SDOT
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

inline constexpr bool kWholeTiles = false;
inline constexpr size_t kValueVectors = 4;  // of channels that DotValues adds up
inline constexpr size_t kFactorWords = 4;   // of a register

// The assembler is told of the instruction where the compiler's machine may lack it.
#ifdef __ARM_FEATURE_DOTPROD
#define PREFIXD_KERNELS_SDOT "sdot"
#else
#define PREFIXD_KERNELS_SDOT ".arch armv8.4-a+crypto\n\tsdot"
#endif
// Highway 1.0.3 has no name for it. Volatile: GCC would move products away from each other, and
// codes to memory.
template <size_t kWord>
HWY_INLINE VI AddDot(VI sum, VI codes, VI factors) {
  __asm__ volatile(PREFIXD_KERNELS_SDOT " %0.4s, %1.16b, %2.4b[%3]"
                   : "+w"(sum.raw)
                   : "w"(codes.raw), "w"(factors.raw), "i"(kWord));
  return sum;
}

// Rounds products times `inverse` to factors, which are the low bits of their sums with a number
// that leaves no bits for a fraction, and stores them. Returns `sum` and their sum, but for factors
// of two digits: bytes are multiplied by these, whose middle is 0 here.
inline constexpr size_t kRoundedVectors = 4;
template <uint32_t kDigits>
HWY_INLINE VI StoreRounded(const VF* products, VF inverse, int8_t* to, size_t digit_pitch, VI sum) {
  const auto rounded = [&](size_t i) HWY_ATTR {
    const VF magic = hn::Set(DF(), 0x1.8p23f);
    return vreinterpretq_s16_f32(hn::MulAdd(products[i], inverse, magic).raw);
  };
  const int16x8_t first = vuzp1q_s16(rounded(0), rounded(1));
  const int16x8_t second = vuzp1q_s16(rounded(2), rounded(3));
  const auto low_bytes = [](int16x8_t a, int16x8_t b) HWY_ATTR {
    return vuzp1q_s8(vreinterpretq_s8_s16(a), vreinterpretq_s8_s16(b));
  };
  if constexpr (kDigits == 1) {
    const int8x16_t factors = low_bytes(first, second);
    vst1q_s8(to, factors);
    return AddDot<0>(sum, VI(vreinterpretq_s32_s8(factors)), hn::Set(DI(), 0x01010101));
  }
  const int16x8_t first_high = vrshrq_n_s16(first, 7), second_high = vrshrq_n_s16(second, 7);
  vst1q_s8(to, low_bytes(first_high, second_high));
  vst1q_s8(to + digit_pitch, low_bytes(vsubq_s16(first, vshlq_n_s16(first_high, 7)),
                                       vsubq_s16(second, vshlq_n_s16(second_high, 7))));
  return sum;
}

HWY_INLINE VI LowNibbles(VI words) { return hn::And(words, hn::Set(DI(), 0x0f0f0f0f)); }
HWY_INLINE VI HighNibbles(VI words) {
  return hn::BitCast(DI(), hn::ShiftRight<4>(hn::BitCast(DBytes(), words)));
}
HWY_INLINE VI LessHalf(VI bytes) {
  return hn::Xor(bytes, hn::Set(DI(), static_cast<int32_t>(0x80808080)));
}
template <CodeKind kKind>
HWY_INLINE VI LoadSigned(const std::byte* from) {
  const VI words = LoadCodes(from);
  return kKind == CodeKind::kBytes ? LessHalf(words) : words;
}

// A register of factors for each row head.
template <size_t kRows>
struct FactorRows {
  VI of[kRows];
  HWY_INLINE FactorRows(const int8_t* factors, size_t pitch) {
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      of[r] = LoadCodes(reinterpret_cast<const std::byte*>(factors + r * pitch));
    }
  }
};
template <size_t kWord, size_t kRows, size_t kVectors>
HWY_INLINE void AddDots(const VI* codes, const FactorRows<kRows>& factors,
                        DotSums<kRows, kVectors>* sums) {
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      sums->of[r][v] = AddDot<kWord>(sums->of[r][v], codes[v], factors.of[r]);
    }
  }
}

// Adds the products of one step of keys, whose factors begin at word kWord.
template <CodeKind kKind, size_t kWord, size_t kRows, size_t kVectors>
HWY_INLINE void AddKeyStep(const std::byte* from, const FactorRows<kRows>& factors,
                           DotSums<kRows, kVectors>* sums) {
  VI codes[kVectors];
#pragma GCC unroll 4
  for (size_t v = 0; v < kVectors; ++v) {
    codes[v] = LoadSigned<kKind>(from + v * kLanes * sizeof(uint32_t));
  }
  if constexpr (kKind == CodeKind::kNibbles) {
    VI nibbles[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) nibbles[v] = LowNibbles(codes[v]);
    AddDots<kWord>(nibbles, factors, sums);
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) nibbles[v] = HighNibbles(codes[v]);
    AddDots<kWord + 1>(nibbles, factors, sums);
  } else {
    AddDots<kWord>(codes, factors, sums);
  }
}
// Keys: a step is 4 channels (nibbles: 8), a lane one token. Groups have at least 32 channels.
template <CodeKind kKind, size_t kRows, size_t kVectors>
HWY_INLINE void DotKeysDigit(const DotInput& in, const int8_t* factors,
                             DotSums<kRows, kVectors>* sums) {
  constexpr bool kNibbles = kKind == CodeKind::kNibbles;
  const std::byte* from = in.codes[0];
  const size_t stride = in.stride;
  for (size_t i = in.steps; i != 0; i -= kNibbles ? 2 : 4, factors += 4 * kFactorWords) {
    const FactorRows<kRows> rows(factors, in.row_pitch);
    AddKeyStep<kKind, 0>(from, rows, sums);
    if constexpr (!kNibbles) AddKeyStep<kKind, 1>(from += stride, rows, sums);
    AddKeyStep<kKind, 2>(from += stride, rows, sums);
    if constexpr (!kNibbles) AddKeyStep<kKind, 3>(from += stride, rows, sums);
    from += stride;
  }
}

// Adds the products of 4 tokens of values, whose factors are word kWord.
template <CodeKind kKind, size_t kWord, size_t kRows>
HWY_INLINE void AddValueStep(const std::byte* from, const FactorRows<kRows>& factors,
                             DotSums<kRows, kValueVectors>* sums) {
  VI codes[kValueVectors];
  if constexpr (kKind == CodeKind::kNibbles) {
    constexpr size_t kLoads = kValueVectors / 2;
#pragma GCC unroll 2
    for (size_t v = 0; v < kLoads; ++v) {
      const VI words = LoadCodes(from + v * kLanes * sizeof(uint32_t));
      codes[v] = LowNibbles(words);
      codes[kLoads + v] = HighNibbles(words);
    }
  } else {
#pragma GCC unroll 4
    for (size_t v = 0; v < kValueVectors; ++v) {
      codes[v] = LoadSigned<kKind>(from + v * kLanes * sizeof(uint32_t));
    }
  }
  AddDots<kWord>(codes, factors, sums);
}
// Values: a step is 4 tokens, a lane one channel. Tiled units have slots for all tokens of a
// register of factors, which are 0 after the last token.
template <CodeKind kKind, size_t kRows>
HWY_INLINE void DotValuesDigit(const DotInput& in, const int8_t* factors,
                               DotSums<kRows, kValueVectors>* sums) {
  static_assert(quant::kTiledSlots == 4 * kFactorWords);
  const std::byte* from = in.codes[0];
  const size_t stride = in.stride;
  for (size_t i = 0; i < in.steps; i += kFactorWords, factors += 4 * kFactorWords) {
    const FactorRows<kRows> rows(factors, in.row_pitch);
    AddValueStep<kKind, 0>(from, rows, sums);
    AddValueStep<kKind, 1>(from += stride, rows, sums);
    AddValueStep<kKind, 2>(from += stride, rows, sums);
    AddValueStep<kKind, 3>(from += stride, rows, sums);
    from += stride;
  }
}

template <CodeKind kKind, uint32_t kDigits, size_t kRows, size_t kVectors>
HWY_INLINE void DotKeys(const DotInput& in, DotSums<kRows, kVectors>* sums) {
  ClearDots(sums);
  in.asker->Ask<kLinesToDotGroup>();
  DotKeysDigit<kKind>(in, in.factors, sums);
  if constexpr (kDigits == 2) {
    RaiseDots(sums);
    DotKeysDigit<kKind>(in, in.factors + in.digit_pitch, sums);
  }
}
template <CodeKind kKind, uint32_t kDigits, size_t kRows>
HWY_INLINE void DotValues(const DotInput& in, DotSums<kRows, kValueVectors>* sums) {
  ClearDots(sums);
  in.asker->Ask<kLinesToDotGroup>();
  DotValuesDigit<kKind>(in, in.factors, sums);
  if constexpr (kDigits == 2) {
    RaiseDots(sums);
    DotValuesDigit<kKind>(in, in.factors + in.digit_pitch, sums);
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
