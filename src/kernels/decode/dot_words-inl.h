// Dots of stored codes and factors in registers, for one SIMD target: included once per target. For
// CPUs that multiply pairs of numbers, and no groups of four bytes.
//
// A word of 4 codes, or of 8 nibbles, is one lane. Pairs of bytes times signed bytes are added up
// in 16 bits, which hold nibbles only. Bytes become 16-bit numbers, and so are their factors: more
// precise, and no slower. No sum across lanes.
#if defined(PREFIXD_KERNELS_DECODE_DOT_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_DOT_WORDS_INL_H_
#undef PREFIXD_KERNELS_DECODE_DOT_WORDS_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_DOT_WORDS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/common/softmax-inl.h"
#include "kernels/decode/dot_input-inl.h"
#include "kernels/decode/job.h"

#if PREFIXD_KERNELS_HAVE_DECODE && !PREFIXD_KERNELS_HAVE_PAIRS && !PREFIXD_KERNELS_HAVE_SDOT
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

using DUPairs = hn::Repartition<uint16_t, DI>;

inline constexpr bool kWholeTiles = false;  // they would take all registers
inline constexpr size_t kValueVectors = 2;  // of channels that DotValues adds up

// A factor of bytes has 16 bits, one of nibbles 8.
HWY_INLINE uint32_t DigitsOf(const DecodeTensor& tensor, uint32_t) { return tensor.bits / 4; }
constexpr size_t FactorBytes(uint32_t digits) { return digits; }
// Returns the largest factor. Sums stay below 2^31: at most 128 factors times 255 are added.
constexpr float CodeLimit(uint32_t digits) { return digits == 1 ? 127.0f : 32767.0f; }
// Stores a factor a lane. Of each 4 with 16 bits the first, third, second and fourth.
HWY_INLINE void StoreFactors(VI factors, uint32_t digits, int8_t* to, size_t) {
  if (digits == 1) return hn::StoreU(hn::DemoteTo(DI8(), factors), DI8(), to);
  alignas(16) static constexpr uint8_t kOrder[16] = {0, 1, 4,  5,  2,  3,  6,  7,
                                                     8, 9, 12, 13, 10, 11, 14, 15};
  const hn::Rebind<int16_t, DF> half;
  const hn::Repartition<uint8_t, decltype(half)> bytes;
  const auto ordered = hn::TableLookupBytes(hn::BitCast(bytes, hn::DemoteTo(half, factors)),
                                            hn::LoadDup128(bytes, kOrder));
  hn::StoreU(ordered, bytes, reinterpret_cast<uint8_t*>(to));
}

// Rounds products times `inverse` to factors and stores them. Returns `sum` and their sum.
inline constexpr size_t kRoundedVectors = 4;
template <uint32_t kDigits>
HWY_INLINE VI StoreRounded(const VF* products, VF inverse, int8_t* to, size_t, VI sum) {
#pragma GCC unroll 4
  for (size_t i = 0; i < kRoundedVectors; ++i) {
    const VI factors = RoundedProduct(products[i], inverse);
    sum = hn::Add(sum, factors);
    StoreFactors(factors, kDigits, to + i * kLanes * FactorBytes(kDigits), 0);
  }
  return sum;
}

// From intrinsics GCC moves the products ahead of all sums, and sums to memory to make room.
HWY_INLINE VI AddWordPairs(VI sum, VI codes, VI factors) {
  VI products;
  __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
          : "+v"(sum.raw), "=&v"(products.raw)
          : "v"(codes.raw), "v"(factors.raw));
  return sum;
}
HWY_INLINE VI AddBytePairs(VI sum, VI codes, VI factors) {
  VI products;
  __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
          : "+v"(sum.raw), "=&v"(products.raw)
          : "v"(codes.raw), "v"(factors.raw));
  return sum;
}

// A register of bytes: bytes 0 and 2 of its words, and 1 and 3, as 16-bit numbers.
struct CodePairs {
  VI even, odd;
};
HWY_INLINE CodePairs PairsOf(VI words) {
  const auto odd = hn::ShiftRight<8>(hn::BitCast(DUPairs(), words));
  return {hn::And(words, hn::Set(DI(), 0x00ff00ff)), hn::BitCast(DI(), odd)};
}
template <CodeKind kKind>
HWY_INLINE CodePairs LoadPairs(const std::byte* from) {
  const VI words = LoadCodes(from);
  return PairsOf(kKind == CodeKind::kSignedBytes ? AsUnsigned(words) : words);
}
template <size_t kRows, size_t kVectors>
HWY_INLINE void AddDots(const CodePairs* codes, const int8_t* factors, size_t pitch,
                        DotSums<kRows, kVectors>* sums) {
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
    const VI even = SetWord(factors + r * pitch), odd = SetWord(factors + r * pitch + 4);
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      sums->of[r][v] = AddWordPairs(sums->of[r][v], codes[v].even, even);
      sums->of[r][v] = AddWordPairs(sums->of[r][v], codes[v].odd, odd);
    }
  }
}

HWY_INLINE VI LowNibbles(VI words) { return hn::And(words, hn::Set(DI(), 0x0f0f0f0f)); }
HWY_INLINE VI HighNibbles(VI words) { return LowNibbles(hn::ShiftRight<4>(words)); }
// So many products of nibbles and factors are added in 16 bits: twice as many are 2 * 8 * 15 * 127.
inline constexpr size_t kNibbleSteps = 8;
// Adds sums of two products each, in 16 bits, to sums of four.
template <size_t kRows, size_t kVectors>
HWY_INLINE void AddHalves(const DotSums<kRows, kVectors>& halves, DotSums<kRows, kVectors>* sums) {
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      sums->of[r][v] = AddWordPairs(sums->of[r][v], halves.of[r][v], hn::Set(DI(), 0x00010001));
    }
  }
}

// Keys: a step is 4 channels (nibbles: 8), a lane one token.
template <CodeKind kKind, uint32_t, size_t kRows, size_t kVectors>
HWY_INLINE void DotKeys(const DotInput& in, DotSums<kRows, kVectors>* sums) {
  ClearDots(sums);
  const std::byte* from = in.codes[0];
  const int8_t* factors = in.factors;
  const size_t stride = in.stride, pitch = in.row_pitch;
  in.asker->Ask<kLinesToDotGroup>();
  if constexpr (kKind == CodeKind::kNibbles) {
    // Groups have at least 32 channels.
    for (size_t i = in.steps; i != 0; i -= kNibbleSteps / 2) {
      DotSums<kRows, kVectors> halves;
      ClearDots(&halves);
      for (size_t s = kNibbleSteps / 2; s != 0; --s, from += stride, factors += 8) {
#pragma GCC unroll 4
        for (size_t v = 0; v < kVectors; ++v) {
          const VI words = LoadCodes(from + v * kLanes * sizeof(uint32_t));
          const VI low = LowNibbles(words), high = HighNibbles(words);
#pragma GCC unroll 4
          for (size_t r = 0; r < kRows; ++r) {
            const VI half = AddBytePairs(halves.of[r][v], low, SetWord(factors + r * pitch));
            halves.of[r][v] = AddBytePairs(half, high, SetWord(factors + r * pitch + 4));
          }
        }
      }
      AddHalves(halves, sums);
    }
    return;
  }
  for (size_t i = in.steps; i != 0; --i, from += stride, factors += 8) {
    CodePairs codes[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      codes[v] = LoadPairs<kKind>(from + v * kLanes * sizeof(uint32_t));
    }
    AddDots(codes, factors, pitch, sums);
  }
}

// Values: a step is 4 tokens, a lane one channel. Nibbles: one register of words, the low ones'
// channels and the high ones'. Bytes: two registers.
template <CodeKind kKind, uint32_t, size_t kRows>
HWY_INLINE void DotValues(const DotInput& in, DotSums<kRows, kValueVectors>* sums) {
  ClearDots(sums);
  const std::byte* from = in.codes[0];
  const int8_t* factors = in.factors;
  const size_t stride = in.stride, pitch = in.row_pitch;
  in.asker->Ask<kLinesToDotGroup>();
  if constexpr (kKind == CodeKind::kNibbles) {
    for (size_t left = in.steps; left != 0;) {
      const size_t steps = HWY_MIN(left, kNibbleSteps);
      left -= steps;
      DotSums<kRows, 2> halves;
      ClearDots(&halves);
      for (size_t s = steps; s != 0; --s, from += stride, factors += 4) {
        const VI words = LoadCodes(from);
        const VI low = LowNibbles(words), high = HighNibbles(words);
#pragma GCC unroll 4
        for (size_t r = 0; r < kRows; ++r) {
          const VI factor = SetWord(factors + r * pitch);
          halves.of[r][0] = AddBytePairs(halves.of[r][0], low, factor);
          halves.of[r][1] = AddBytePairs(halves.of[r][1], high, factor);
        }
      }
      AddHalves(halves, sums);
    }
    return;
  }
  for (size_t i = in.steps; i != 0; --i, from += stride, factors += 8) {
    const CodePairs codes[2] = {LoadPairs<kKind>(from),
                                LoadPairs<kKind>(from + kLanes * sizeof(uint32_t))};
    AddDots(codes, factors, pitch, sums);
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
