// A tile's weights times its values' scales as factors, for one SIMD target: included once per
// target. What weights-inl.h does, for targets whose tile is more than four vectors or that
// multiply no groups of bytes.
#if defined(PREFIXD_KERNELS_DECODE_WEIGHTS_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_WEIGHTS_WORDS_INL_H_
#undef PREFIXD_KERNELS_DECODE_WEIGHTS_WORDS_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_WEIGHTS_WORDS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/decode/dot_signed-inl.h"
#include "kernels/decode/dot_words-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/keys-inl.h"
#include "kernels/decode/softmax-inl.h"
#include "kernels/decode/tile-inl.h"

#if PREFIXD_KERNELS_HAVE_DECODE && !PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

inline constexpr uint32_t kChunkGroups = 2;  // whose factors are kept together
inline constexpr size_t kWeightDigitPitch = size_t{kChunkGroups} * kStripHeads * kDecodeTile;

// Rounds a strip's weights times scales of up to kChunkGroups groups to factors in scratch.codes.
template <uint32_t kDigits>
class WeightCodes {
 public:
  HWY_INLINE WeightCodes(const DecodeJob& job, const DecodeTensor& value,
                         const DecodeScratch& scratch, const DecodeStrip& strip)
      : value_(value),
        scratch_(scratch),
        strip_(strip),
        offset_repeats_(value.group / job.offset_channels),
        offset_pitch_(size_t{job.offset_groups} * kLanes),
        offsets_(job.sums.offsets + strip.first * offset_pitch_) {}

  // Rounds groups [first, first + count).
  template <size_t kRows>
  HWY_INLINE void Round(uint32_t first, uint32_t count, LineAsker* asker) {
    if (strip_.all_seen()) return RoundGroups<kRows, true>(first, count, asker);
    RoundGroups<kRows, false>(first, count, asker);
  }

  // Factors of the g-th of those groups: [kRows][kDecodeTile].
  HWY_INLINE const int8_t* codes(uint32_t g) const {
    return scratch_.codes + g * kStripHeads * kRowBytes;
  }
  // What 1 of the group's factors is worth.
  HWY_INLINE float step(uint32_t g, size_t r) const { return steps_[g * kStripHeads + r]; }

 private:
  static constexpr size_t kVectors = kDecodeTile / kLanes;
  static constexpr size_t kSteps = HWY_MAX(kChunkGroups * kStripHeads, kLanes);
  static constexpr size_t kRowBytes = kDecodeTile * FactorBytes(kDigits);

  // A row head's weights, and a group's scales and biases: 0, even for NaN, where the row head does
  // not see the token.
  template <bool kAllSeen>
  struct Row {
    const float* weights;
    const float* scales;
    const float* biases;
    SeenTokens seen;
    HWY_INLINE VF Weight(size_t v) const { return hn::LoadU(DF(), weights + v * kLanes); }
    HWY_INLINE VF Scale(size_t v) const { return OfSeen(scales, v); }
    HWY_INLINE VF Bias(size_t v) const { return OfSeen(biases, v); }

   private:
    HWY_INLINE VF OfSeen(const float* parameters, size_t v) const {
      const VF x = hn::LoadU(DF(), parameters + v * kLanes);
      return kAllSeen ? x : seen.Keep(v, x);
    }
  };
  template <bool kAllSeen>
  HWY_INLINE Row<kAllSeen> RowOf(uint32_t group, size_t r) const {
    return {scratch_.scores + r * kDecodeTile, scratch_.value_scales + group * kDecodeTile,
            scratch_.value_biases + group * kDecodeTile, SeenTokens(strip_.seen[r])};
  }

  template <size_t kRows, bool kAllSeen>
  HWY_INLINE void RoundGroups(uint32_t first, uint32_t count, LineAsker* asker) {
    LineAsker local = *asker;  // a member or the pointer's target would be stored again and again
    for (uint32_t g = 0; g < count; ++g) {
      for (size_t r = 0; r < kRows; ++r) {
        local.Ask<kLinesToScale>();
        steps_[g * kStripHeads + r] = LargestProduct(RowOf<kAllSeen>(first + g, r));
      }
    }
    SetSteps();
    for (uint32_t g = 0; g < count; ++g) {
      for (size_t r = 0; r < kRows; ++r) {
        local.Ask<kLinesToRound>();
        AddOffset(first + g, r, StoreRow(RowOf<kAllSeen>(first + g, r), g, r));
      }
    }
    *asker = local;
  }
  template <class Row>
  static HWY_INLINE float LargestProduct(const Row& row) {
    VF largest = hn::Zero(DF());
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      largest = hn::Max(hn::Abs(hn::Mul(row.Weight(v), row.Scale(v))),
                        largest);  // the second one where one is NaN
    }
    return hn::GetLane(hn::MaxOfLanes(DF(), largest));
  }
  // Turns the largest products into steps.
  HWY_INLINE void SetSteps() {
    const DF df;
    const VF limit = hn::Set(df, CodeLimit(kDigits));
    for (size_t i = 0; i < kSteps; i += kLanes) {
      const VF largest = hn::LoadU(df, steps_ + i);
      const auto tiny = hn::Lt(largest, hn::Set(df, 1e-30f));
      hn::StoreU(hn::IfThenZeroElse(tiny, hn::Div(limit, largest)), df, inverses_ + i);
      hn::StoreU(hn::Mul(largest, hn::Set(df, 1 / CodeLimit(kDigits))), df, steps_ + i);
    }
  }
  // Stores the factors. Returns what they leave out, and the biases: lanes still to be added.
  template <class Row>
  HWY_INLINE VF StoreRow(const Row& row, uint32_t g, size_t r) const {
    const DF df;
    const VF inverse = hn::Set(df, inverses_[g * kStripHeads + r]);
    int8_t* const to = scratch_.codes + (g * kStripHeads + r) * kRowBytes;
    VI sum = hn::Zero(DI());
    VF biases[2] = {hn::Zero(df), hn::Zero(df)};  // one would wait for itself
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; v += kRoundedVectors) {
      VF products[kRoundedVectors];
#pragma GCC unroll 4
      for (size_t i = 0; i < kRoundedVectors; ++i) {
        const VF weight = row.Weight(v + i);
        products[i] = hn::Mul(weight, row.Scale(v + i));
        if (value_.biased) biases[i % 2] = hn::MulAdd(weight, row.Bias(v + i), biases[i % 2]);
      }
      sum = StoreRounded<kDigits>(products, inverse, to + v * kLanes * FactorBytes(kDigits),
                                  kWeightDigitPitch, sum);
    }
    const VF middle = hn::Set(df, -steps_[g * kStripHeads + r] * MiddleOf(value_));
    return hn::MulAdd(hn::ConvertTo(df, sum), middle, hn::Add(biases[0], biases[1]));
  }
  HWY_INLINE void AddOffset(uint32_t group, size_t r, VF offset) const {
    float* const to = offsets_ + r * offset_pitch_ + group * offset_repeats_ * kLanes;
    for (uint32_t i = 0; i < offset_repeats_; ++i) {
      hn::StoreU(hn::Add(hn::LoadU(DF(), to + i * kLanes), offset), DF(), to + i * kLanes);
    }
  }

  const DecodeTensor& value_;
  const DecodeScratch& scratch_;
  const DecodeStrip& strip_;
  const uint32_t offset_repeats_;  // of a group of values
  const size_t offset_pitch_;      // from a row head to the next
  float* const offsets_;           // of the strip's first row head
  float steps_[kSteps] = {};       // of [kChunkGroups][kStripHeads]
  float inverses_[kSteps];         // of the steps
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
