// Dots of stored codes and signed bytes in registers, for one SIMD target: included once per
// target. dot_signed-inl.h does the same on arm64, dot_words-inl.h where no instruction multiplies
// groups of bytes.
//
// A word of 4 codes is one lane; 4 row heads share every loaded register. No sum across lanes.
#if defined(PREFIXD_KERNELS_DECODE_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_DOT_INL_H_
#undef PREFIXD_KERNELS_DECODE_DOT_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_DOT_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/common/tile_row-inl.h"
#include "kernels/decode/ask-inl.h"
#include "kernels/decode/digits-inl.h"
#include "kernels/decode/dot_input-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Whether a whole tile's keys are one set of registers.
inline constexpr bool kWholeTiles = true;

HWY_INLINE VI AddDot(VI sum, VI codes, VI factors) {
  // Highway 1.0.3 has no name for this instruction and GCC's intrinsic copies registers.
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(codes.raw), "v"(factors.raw));
  return sum;
}
HWY_INLINE VI LowNibbles(VI codes) { return hn::And(codes, hn::Set(DI(), 0x0f0f0f0f)); }
// RaisedNibbles returns the high nibbles times kRaise.
inline constexpr float kRaise = 16;
HWY_INLINE VI RaisedNibbles(VI codes) {
  return hn::And(codes, hn::Set(DI(), static_cast<int32_t>(0xf0f0f0f0)));
}
HWY_INLINE VI HighNibbles(VI codes) { return LowNibbles(hn::ShiftRight<4>(codes)); }

template <size_t kRows, size_t kVectors>
HWY_INLINE void AddDots(const VI* codes, const int8_t* factors, size_t pitch,
                        DotSums<kRows, kVectors>* sums) {
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
    const VI factor = SetWord(factors + r * pitch);
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      sums->of[r][v] = AddDot(sums->of[r][v], codes[v], factor);
    }
  }
}
// Keys: a step is 4 channels (nibbles: 8), a register 16 tokens.
template <CodeKind kKind, size_t kRows, size_t kVectors>
HWY_INLINE void DotKeysDigit(const DotInput& in, const int8_t* factors,
                             DotSums<kRows, kVectors>* sums) {
  const std::byte* first = in.codes[0];
  const std::byte* second = in.codes[1];
  const size_t stride = in.stride, pitch = in.row_pitch;
  constexpr size_t kStepBytes = kKind == CodeKind::kNibbles ? 8 : 4;
  LineAsker asker = *in.asker;
  for (size_t i = in.steps; i != 0; --i, first += stride, second += stride, factors += kStepBytes) {
    asker.Ask<kLinesToDot>();
    VI codes[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      const std::byte* from = (v < 2 ? first : second) + v % 2 * 64;
      codes[v] = LoadCodes(from);
      if constexpr (kKind == CodeKind::kSignedBytes) codes[v] = AsUnsigned(codes[v]);
    }
    if constexpr (kKind == CodeKind::kNibbles) {
      VI low[kVectors];
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) low[v] = LowNibbles(codes[v]);
      AddDots(low, factors, pitch, sums);
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) low[v] = HighNibbles(codes[v]);
      AddDots(low, factors + 4, pitch, sums);
    } else {
      AddDots(codes, factors, pitch, sums);
    }
  }
  *in.asker = asker;
}

// Whether a register's sums of values are kRaise times what they should be.
template <CodeKind kKind>
constexpr bool IsRaised(size_t vector) {
  return kKind == CodeKind::kNibbles && vector % 2 == 1;
}
// Values: a step is 4 tokens, a register 16 channels.
template <CodeKind kKind, size_t kRows, size_t kVectors>
HWY_INLINE void DotValuesDigit(const DotInput& in, const int8_t* factors,
                               DotSums<kRows, kVectors>* sums) {
  constexpr size_t kLoads = kKind == CodeKind::kNibbles ? kVectors / 2 : kVectors;
  const std::byte* from = in.codes[0];
  const size_t stride = in.stride, pitch = in.row_pitch;
  LineAsker asker = *in.asker;
  for (size_t i = in.steps; i != 0; --i, from += stride, factors += 4) {
    asker.Ask<kLinesToDot>();
    VI codes[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kLoads; ++v) {
      const VI loaded = LoadCodes(from + v * 64);
      if constexpr (kKind == CodeKind::kNibbles) {
        codes[2 * v] = LowNibbles(loaded);
        codes[2 * v + 1] = RaisedNibbles(loaded);
      } else {
        codes[v] = kKind == CodeKind::kBytes ? loaded : AsUnsigned(loaded);
      }
    }
    AddDots(codes, factors, pitch, sums);
  }
  *in.asker = asker;
}

// Adds each digit's dots. kDigits is known at compile time: GCC spills sums where loops meet.
template <CodeKind kKind, uint32_t kDigits, size_t kRows, size_t kVectors>
HWY_INLINE void DotKeys(const DotInput& in, DotSums<kRows, kVectors>* sums) {
  ClearDots(sums);
  DotKeysDigit<kKind>(in, in.factors, sums);
  if constexpr (kDigits == 2) {
    RaiseDots(sums);
    DotKeysDigit<kKind>(in, in.factors + in.digit_pitch, sums);
  }
}
template <CodeKind kKind, uint32_t kDigits, size_t kRows, size_t kVectors>
HWY_INLINE void DotValues(const DotInput& in, DotSums<kRows, kVectors>* sums) {
  ClearDots(sums);
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
