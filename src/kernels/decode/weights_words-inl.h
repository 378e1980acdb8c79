// A tile's weights times its values' scales as factors (dot_words-inl.h), for one SIMD target:
// included once per target. What weights-inl.h does, for CPUs that multiply no groups of bytes.
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
#include "kernels/decode/dot_words-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/keys-inl.h"
#include "kernels/decode/softmax-inl.h"
#include "kernels/decode/tile-inl.h"

#if PREFIXD_KERNELS_HAVE_DECODE && !PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

inline constexpr uint32_t kChunkGroups = 2;     // whose factors are kept together
inline constexpr size_t kWeightDigitPitch = 0;  // a factor is one number

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
    HWY_INLINE VF Bias(size_t v) const { return OfSeen(biases, v); }
    HWY_INLINE VF Product(size_t v) const { return hn::Mul(Weight(v), OfSeen(scales, v)); }

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
      largest = hn::Max(hn::Abs(row.Product(v)), largest);  // the second one where one is NaN
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
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      const VI factors = RoundedProduct(row.Product(v), inverse);
      sum = hn::Add(sum, factors);
      StoreFactors(factors, kDigits, to + v * kLanes * FactorBytes(kDigits), 0);
    }
    VF offset =
        hn::Mul(hn::ConvertTo(df, sum), hn::Set(df, -steps_[g * kStripHeads + r] * value_.middle));
    if (!value_.biased) return offset;
    VF odd = hn::Zero(df);  // two sums: one would wait for itself
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; v += 2) {
      offset = hn::MulAdd(row.Weight(v), row.Bias(v), offset);
      odd = hn::MulAdd(row.Weight(v + 1), row.Bias(v + 1), odd);
    }
    return hn::Add(offset, odd);
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
