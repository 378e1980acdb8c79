// Products of keys and the scores they make, in pieces that a pipeline interleaves, for one SIMD
// target: included once per target.
#if defined(PREFIXD_KERNELS_DECODE_PIPELINE_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_PIPELINE_KEYS_INL_H_
#undef PREFIXD_KERNELS_DECODE_PIPELINE_KEYS_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_PIPELINE_KEYS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/decode/dot-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/pipeline_shape-inl.h"
#include "kernels/decode/tile-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

inline constexpr size_t kKeyStride = 128;  // 32 tokens, 4 bytes each
// Products of a group's keys: [kStripHeads][2 vectors][16].
inline constexpr size_t kKeySumsPitch = size_t{kStripHeads} * 2 * kLanes;

// Adds 16 products: four row heads by two vectors of keys of two groups.
struct KeySums {
  VI of[2][kStripHeads][2];  // [group][row head][vector]

  HWY_INLINE void Clear() {
    Unroll<16>([&](auto i) PREFIXD_KERNELS_INLINE { At(i) = hn::Zero(DI()); });
  }
  HWY_INLINE void Raise() {
    Unroll<16>([&](auto i) PREFIXD_KERNELS_INLINE { At(i) = hn::ShiftLeft<7>(At(i)); });
  }
  HWY_INLINE void Add(const VI (&codes)[4], const int8_t* first, const int8_t* second) {
    Unroll<kStripHeads>([&](auto r) PREFIXD_KERNELS_INLINE {
      const VI a = SetWord(first + r * kPipelineDim);
      const VI b = SetWord(second + r * kPipelineDim);
      of[0][r][0] = AddDot(of[0][r][0], codes[0], a);
      of[0][r][1] = AddDot(of[0][r][1], codes[1], a);
      of[1][r][0] = AddDot(of[1][r][0], codes[2], b);
      of[1][r][1] = AddDot(of[1][r][1], codes[3], b);
    });
  }
  // to: [2 groups][kStripHeads][2][16]
  HWY_INLINE void Store(int32_t* to) const {
    Unroll<16>([&](auto i) PREFIXD_KERNELS_INLINE {
      hn::StoreU(of[i / 8][i / 2 % 4][i % 2], DI(), to + i * kLanes);
    });
  }

 private:
  HWY_INLINE VI& At(size_t i) { return of[i / 8][i / 2 % 4][i % 2]; }
};

// Multiplies one turn's keys of two groups with the queries from `query` on. Calls beside(step)
// after each 16 products.
template <class Shape, class Beside>
HWY_INLINE void DotKeyTurn(const std::byte* codes, const int8_t* query, KeySums* sums,
                           const Beside& beside) {
  constexpr bool kNibbles = Shape::kKey == CodeKind::kNibbles;
  constexpr size_t kGroup = Shape::kKeyGroup;
  constexpr size_t kLoadSteps = kNibbles ? 2 : 1;
  Unroll<Shape::kSteps / kLoadSteps>([&](auto i) PREFIXD_KERNELS_INLINE {
    constexpr size_t kStep = i * kLoadSteps;
    const int8_t* const q = query + kStep * 4;
    const std::byte* const from = codes + i * kKeyStride;
    const std::byte* const second = from + kGroup / 4 / kLoadSteps * kKeyStride;
    VI loaded[4] = {LoadCodes(from), LoadCodes(from + 64), LoadCodes(second),
                    LoadCodes(second + 64)};
    if constexpr (kNibbles) {
      const VI low[4] = {LowNibbles(loaded[0]), LowNibbles(loaded[1]), LowNibbles(loaded[2]),
                         LowNibbles(loaded[3])};
      sums->Add(low, q, q + kGroup);
      beside(std::integral_constant<size_t, kStep>());
      const VI high[4] = {HighNibbles(loaded[0]), HighNibbles(loaded[1]), HighNibbles(loaded[2]),
                          HighNibbles(loaded[3])};
      sums->Add(high, q + 4, q + 4 + kGroup);
      beside(std::integral_constant<size_t, kStep + 1>());
    } else {
      if constexpr (Shape::kKey == CodeKind::kSignedBytes) {
        Unroll<4>([&](auto v) PREFIXD_KERNELS_INLINE { loaded[v] = AsUnsigned(loaded[v]); });
      }
      sums->Add(loaded, q, q + kGroup);
      beside(std::integral_constant<size_t, kStep>());
    }
  });
}

// Multiplies one half (32 tokens) of a tile's keys. sums_to: [key groups][kStripHeads][2][16].
// Calls beside(turn, step) after each 16 products.
template <class Shape, class Beside>
HWY_INLINE void DotKeyHalf(const std::byte* codes, const int8_t* query, size_t digit_pitch,
                           int32_t* sums_to, const Beside& beside) {
  constexpr size_t kPairs = Shape::kKeyGroups / 2;  // of groups
  constexpr size_t kPairTurns = kTurns / kPairs;    // of all digits
  constexpr size_t kDigitTurns = kPairTurns / Shape::kDigits;
  constexpr size_t kTurnBytes =
      Shape::kSteps / (Shape::kKey == CodeKind::kNibbles ? 2 : 1) * kKeyStride;
  for (size_t pair = 0; pair < kPairs; ++pair) {
    KeySums sums;
    sums.Clear();
    const std::byte* const pair_codes = codes + pair * 2 * kDigitTurns * kTurnBytes;
    const int8_t* const pair_query = query + pair * 2 * Shape::kKeyGroup;
#pragma GCC unroll 1
    for (size_t t = 0; t < kPairTurns; ++t) {
      if (Shape::kDigits == 2 && t == kDigitTurns) sums.Raise();
      const size_t digit = t / kDigitTurns, turn = t % kDigitTurns;
      DotKeyTurn<Shape>(pair_codes + turn * kTurnBytes,
                        pair_query + digit * digit_pitch + turn * Shape::kSteps * 4, &sums,
                        [&](auto step)
                            PREFIXD_KERNELS_INLINE { beside(pair * kPairTurns + t, step); });
    }
    sums.Store(sums_to + pair * 2 * kKeySumsPitch);
  }
}

// Returns the scores of 16 tokens for one row head, in the order of arithmetic of ScoreTokens. What
// is given is the first group's.
template <class Shape>
HWY_INLINE VF ScoreVector(const int32_t* sums, const float* scales, const float* biases,
                          const QueryTerm* terms) {
  const DF df;
  VF score = hn::Zero(df);
  Unroll<Shape::kKeyGroups>([&](auto g) PREFIXD_KERNELS_INLINE {
    const QueryTerm& term = terms[g];
    const VF dot = hn::MulAdd(hn::ConvertTo(df, hn::LoadU(DI(), sums + g * kKeySumsPitch)),
                              hn::Set(df, term.step), hn::Set(df, term.centre));
    const VF scale = hn::LoadU(df, scales + g * kDecodeTile);
    if constexpr (Shape::kKeyBiased) {
      const VF bias = hn::LoadU(df, biases + g * kDecodeTile), sum = hn::Set(df, term.sum);
      score = g == 0 ? hn::Mul(bias, sum) : hn::MulAdd(bias, sum, score);
    }
    score = hn::MulAdd(dot, scale, score);
  });
  return score;
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
