// Adds a tile's values by their weights, for one SIMD target: included once per target.
#if defined(PREFIXD_KERNELS_DECODE_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_VALUES_INL_H_
#undef PREFIXD_KERNELS_DECODE_VALUES_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_VALUES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/decode/dot-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/softmax-inl.h"
#include "kernels/decode/tile-inl.h"
#include "kernels/decode/weights-inl.h"
#include "kernels/decode/weights_words-inl.h"
#include "quant/tiled.h"

#if PREFIXD_KERNELS_HAVE_DECODE
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

#if PREFIXD_KERNELS_HAVE_PAIRS

// Adds dots * steps to sums, for some channels of the codes' group g.
template <CodeKind kKind, uint32_t kDigits, size_t kRows, size_t kVectors>
HWY_INLINE void AddVectors(const DotInput& in, const WeightCodes<kDigits>& weights, uint32_t g,
                           float* sums, size_t pitch) {
  const DF df;
  DotSums<kRows, kVectors> dots;
  DotValues<kKind, kDigits>(in, &dots);
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
    const VF step = hn::Set(df, weights.step(g, r));
    const VF raised_step = hn::Mul(step, hn::Set(df, 1 / kRaise));
    float* to = sums + r * pitch;
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      const VF dot = hn::ConvertTo(df, dots.of[r][v]);
      const VF of_dot = IsRaised<kKind>(v) ? raised_step : step;
      hn::StoreU(hn::MulAdd(dot, of_dot, hn::LoadU(df, to + v * kLanes)), df, to + v * kLanes);
    }
  }
}

// Adds the codes' group g to sums of its channels. Moves the input's codes.
template <CodeKind kKind, uint32_t kDigits, size_t kRows>
HWY_INLINE void AddGroup(const DecodeTensor& value, DotInput* in,
                         const WeightCodes<kDigits>& weights, uint32_t g, float* sums,
                         size_t pitch) {
  constexpr size_t kBytesOf64Channels = kKind == CodeKind::kNibbles ? 128 : 256;
  if (value.group == 32) {
    return AddVectors<kKind, kDigits, kRows, 2>(*in, weights, g, sums, pitch);
  }
  for (uint32_t c = 0; c < value.group; c += 64, in->codes[0] += kBytesOf64Channels) {
    AddVectors<kKind, kDigits, kRows, 4>(*in, weights, g, sums + c, pitch);
  }
}

#else

// The same, a few vectors of channels at a time: 16 words have the channels of their low nibbles,
// then those of the high ones.
template <CodeKind kKind, uint32_t kDigits, size_t kRows>
HWY_INLINE void AddGroup(const DecodeTensor& value, DotInput* in,
                         const WeightCodes<kDigits>& weights, uint32_t g, float* sums,
                         size_t pitch) {
  constexpr bool kNibbles = kKind == CodeKind::kNibbles;
  constexpr size_t kLoads = kNibbles ? kValueVectors / 2 : kValueVectors;
  constexpr uint32_t kWords = kLoads * kLanes;
  const DF df;
  const uint32_t words = value.group * value.bits / 8;
  for (uint32_t w = 0; w < words; w += kWords, in->codes[0] += kWords * sizeof(uint32_t)) {
    DotSums<kRows, kValueVectors> dots;
    DotValues<kKind, kDigits>(*in, &dots);
    constexpr uint32_t kHalf = quant::kValueLanes;
    float* to = sums + (kNibbles ? w / kHalf * 2 * kHalf + w % kHalf : w);
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r, to += pitch) {
      const VF step = hn::Set(df, weights.step(g, r));
#pragma GCC unroll 4
      for (size_t v = 0; v < kValueVectors; ++v) {
        float* const at = to + v / kLoads * kHalf + v % kLoads * kLanes;
        hn::StoreU(hn::MulAdd(hn::ConvertTo(df, dots.of[r][v]), step, hn::LoadU(df, at)), df, at);
      }
    }
  }
}

#endif

template <CodeKind kKind, uint32_t kDigits, size_t kRows>
HWY_NOINLINE HWY_ATTR void AddTile(const DecodeJob& job, const DecodeTensor& value,
                                   const DecodeUnit& unit, const DecodeTokens& tile,
                                   LineAsker* asker, const DecodeStrip& strip,
                                   const DecodeScratch& scratch) {
  const TileCodes codes = ValueCodesOf(value, unit, tile);
  float* const sums = job.sums.values + strip.first * job.value_pitch;
  WeightCodes<kDigits> weights(job, value, scratch, strip);
  DotInput in;
  in.stride = codes.stride;
  in.asker = asker;
  in.steps = (tile.tokens + 3) / 4;
  in.row_pitch = kDecodeTile * FactorBytes(kDigits);
  in.digit_pitch = kWeightDigitPitch;
  for (uint32_t group = 0; group < value.groups; ++group) {
    const uint32_t g = group % kChunkGroups;
    if (g == 0) {
      const uint32_t count = HWY_MIN(kChunkGroups, value.groups - group);
      weights.template Round<kRows>(group, count, asker);
    }
    in.codes[0] = codes.half[0] + group * codes.group_stride;
    in.factors = weights.codes(g);
    AddGroup<kKind, kDigits, kRows>(value, &in, weights, g, sums + group * value.group,
                                    job.value_pitch);
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
