// Products of values, in pieces that a pipeline interleaves, for one SIMD target: included once per
// target.
#if defined(PREFIXD_KERNELS_DECODE_PIPELINE_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_PIPELINE_VALUES_INL_H_
#undef PREFIXD_KERNELS_DECODE_PIPELINE_VALUES_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_PIPELINE_VALUES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/decode/dot-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/pipeline_shape-inl.h"
#include "kernels/decode/weights-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Adds 16 products: four row heads by four vectors of 16 channels.
struct ValueSums {
  VI of[kStripHeads][4];

  HWY_INLINE void Clear() {
    Unroll<16>([&](auto i) PREFIXD_KERNELS_INLINE { of[i / 4][i % 4] = hn::Zero(DI()); });
  }
  HWY_INLINE void Raise() {
    Unroll<16>([&](auto i) PREFIXD_KERNELS_INLINE {
      of[i / 4][i % 4] = hn::ShiftLeft<7>(of[i / 4][i % 4]);
    });
  }
  // weights: [kStripHeads][kDecodeTile]. kTwoGroups: the last two vectors' follow.
  template <bool kTwoGroups>
  HWY_INLINE void Add(const VI (&codes)[4], const int8_t* weights) {
    Unroll<kStripHeads>([&](auto r) PREFIXD_KERNELS_INLINE {
      const VI a = SetWord(weights + r * kDecodeTile);
      of[r][0] = AddDot(of[r][0], codes[0], a);
      of[r][1] = AddDot(of[r][1], codes[1], a);
      const VI b = kTwoGroups ? SetWord(weights + (kStripHeads + r) * kDecodeTile) : a;
      of[r][2] = AddDot(of[r][2], codes[2], b);
      of[r][3] = AddDot(of[r][3], codes[3], b);
    });
  }
};

// Bytes from 4 tokens of a group's values to the next ones.
template <class Shape>
inline constexpr size_t kValueStride = Shape::kValueGroup /
                                       kLanes*(Shape::kValue == CodeKind::kNibbles ? 32 : 64);

// Multiplies 64 channels of some tokens' values. second: the last 32 of these channels. Calls
// beside(step) after each 16 products.
template <class Shape, class Beside>
HWY_INLINE void DotValueTurn(const std::byte* codes, const std::byte* second, const int8_t* weights,
                             ValueSums* sums, const Beside& beside) {
  constexpr bool kNibbles = Shape::kValue == CodeKind::kNibbles;
  constexpr bool kTwoGroups = Shape::kValueGroup == 32;
  Unroll<Shape::kSteps>([&](auto step) PREFIXD_KERNELS_INLINE {
    const std::byte* const from = codes + step * kValueStride<Shape>;
    const std::byte* const last = second + step * kValueStride<Shape>;
    VI loaded[4];
    if constexpr (kNibbles) {
      const VI a = LoadCodes(from), b = LoadCodes(last);
      loaded[0] = LowNibbles(a);
      loaded[1] = RaisedNibbles(a);
      loaded[2] = LowNibbles(b);
      loaded[3] = RaisedNibbles(b);
    } else {
      loaded[0] = LoadCodes(from);
      loaded[1] = LoadCodes(from + 64);
      loaded[2] = LoadCodes(last);
      loaded[3] = LoadCodes(last + 64);
      if constexpr (Shape::kValue == CodeKind::kSignedBytes) {
        Unroll<4>([&](auto v) PREFIXD_KERNELS_INLINE { loaded[v] = AsUnsigned(loaded[v]); });
      }
    }
    const int8_t* const w = weights + step * 4;
    sums->template Add<kTwoGroups>(loaded, w);
    beside(step);
  });
}

// Multiplies 64 channels of a tile's values and adds them to `to`, the sums of these channels.
// `codes` are those of the channels' first group, `weights` and `steps` those of this group. Calls
// beside(turn, step) after each 16 products.
template <class Shape, class Beside>
HWY_INLINE void DotValueHalf(const std::byte* codes, size_t group_stride, const int8_t* weights,
                             const float* steps, float* to, size_t pitch, const Beside& beside) {
  constexpr bool kTwoGroups = Shape::kValueGroup == 32;
  constexpr size_t kDigitTurns = kTurns / Shape::kDigits;
  constexpr size_t kTurnBytes = Shape::kSteps * kValueStride<Shape>;
  ValueSums sums;
  sums.Clear();
  const std::byte* const second = codes + (kTwoGroups ? group_stride : kValueStride<Shape> / 2);
#pragma GCC unroll 1
  for (size_t t = 0; t < kTurns; ++t) {
    if (Shape::kDigits == 2 && t == kDigitTurns) sums.Raise();
    const size_t digit = t / kDigitTurns, turn = t % kDigitTurns;
    DotValueTurn<Shape>(codes + turn * kTurnBytes, second + turn * kTurnBytes,
                        weights + digit * kWeightDigitPitch + turn * Shape::kSteps * 4, &sums,
                        [&](auto step) PREFIXD_KERNELS_INLINE { beside(t, step); });
  }
  const DF df;
  Unroll<kStripHeads>([&](auto r) PREFIXD_KERNELS_INLINE {
    Unroll<4>([&](auto v) PREFIXD_KERNELS_INLINE {
      const VF step = hn::Set(df, steps[r + (kTwoGroups && v >= 2 ? kStripHeads : 0)]);
      const VF factor = IsRaised<Shape::kValue>(v) ? hn::Mul(step, hn::Set(df, 1 / kRaise)) : step;
      float* const sum = to + r * pitch + v * kLanes;
      hn::StoreU(hn::MulAdd(hn::ConvertTo(df, sums.of[r][v]), factor, hn::LoadU(df, sum)), df, sum);
    });
  });
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
