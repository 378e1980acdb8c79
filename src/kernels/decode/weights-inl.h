// A tile's weights times its values' scales as codes, for one SIMD target: included once per
// target.
//
// Let w be the weights and v the stored codes of a group, counted from the middle of their range. A
// channel's result is the sum over tokens of w * (scale * (v - middle) + bias), where the bias is
// that of the middle code. For each group of each tile w * scale becomes codes c * step, with c
// signed bytes. The rounding costs least where v is counted from the middle.
#if defined(PREFIXD_KERNELS_DECODE_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_WEIGHTS_INL_H_
#undef PREFIXD_KERNELS_DECODE_WEIGHTS_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_WEIGHTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/common/tile_row-inl.h"
#include "kernels/decode/dot-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/keys-inl.h"
#include "kernels/decode/softmax-inl.h"
#include "kernels/decode/tile-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Groups whose weights are rounded together: times kStripHeads row heads they fill a vector.
inline constexpr uint32_t kChunkGroups = kLanes / kStripHeads;
inline constexpr size_t kWeightDigitPitch = size_t{kChunkGroups} * kStripHeads * kDecodeTile;

// Codes of a tile's tokens.
struct TileCodes64 {
  VI v0, v1, v2, v3;
  // Stores the codes' digits. Returns the codes' sum: a vector whose lanes are still to be added.
  template <uint32_t kDigits>
  HWY_INLINE VI Store(int8_t* to, size_t digit_pitch) const {
    if constexpr (kDigits == 1) return StoreBytes(hn::Zero(DI()), to);
    const TileCodes64 high{HighDigit(v0), HighDigit(v1), HighDigit(v2), HighDigit(v3)};
    const TileCodes64 low{LowDigit(v0, high.v0), LowDigit(v1, high.v1), LowDigit(v2, high.v2),
                          LowDigit(v3, high.v3)};
    const VI sum = high.StoreBytes(hn::Zero(DI()), to);
    return low.StoreBytes(hn::ShiftLeft<7>(sum), to + digit_pitch);
  }

 private:
  // Stores the codes as bytes. Returns `start` plus their sum.
  HWY_INLINE VI StoreBytes(VI start, int8_t* to) const {
    const __m512i first = _mm512_packs_epi32(v0.raw, v1.raw);
    const __m512i second = _mm512_packs_epi32(v2.raw, v3.raw);
    const VI bytes{_mm512_packs_epi16(first, second)};
    // Packing takes 4 numbers of each vector in turns.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes.raw));
    return AddDot(start, hn::Set(DI(), 0x01010101), bytes);
  }
};

// What 1 of the codes of a weight times a scale is worth, for each of [kChunkGroups][kStripHeads].
struct WeightSteps {
  alignas(64) float steps[kLanes];
  alignas(64) float inverses[kLanes];  // of the steps
  alignas(64) float middles[kLanes];   // what 1 of the codes' sum is worth

  // Sets the steps from the largest products.
  HWY_INLINE void Set(VF largest, float limit, float middle) {
    const DF df;
    const auto tiny = hn::Lt(largest, hn::Set(df, 1e-30f));  // false for NaN
    const VF step = hn::Mul(largest, hn::Set(df, 1 / limit));
    hn::Store(hn::IfThenZeroElse(tiny, hn::Div(hn::Set(df, limit), largest)), df, inverses);
    hn::Store(step, df, steps);
    hn::Store(hn::Mul(step, hn::Set(df, -middle)), df, middles);
  }
};

// Rounds products of weights and scales with `inverse` and stores their codes. Returns the codes'
// sum: a vector whose lanes are still to be added.
template <uint32_t kDigits>
HWY_INLINE VF StoreRounded(const TileRow64& x, float inverse, int8_t* codes, size_t digit_pitch) {
  const VF factor = hn::Set(DF(), inverse);
  const TileCodes64 rounded{RoundedProduct(x.v0, factor), RoundedProduct(x.v1, factor),
                            RoundedProduct(x.v2, factor), RoundedProduct(x.v3, factor)};
  return hn::ConvertTo(DF(), rounded.template Store<kDigits>(codes, digit_pitch));
}

// Rounds a strip's weights times scales of up to kChunkGroups groups to codes in scratch.codes.
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

  // Codes of the g-th of those groups: [kRows][kDecodeTile], the next digit kWeightDigitPitch
  // later.
  HWY_INLINE const int8_t* codes(uint32_t g) const { return scratch_.codes + CodesAt(g, 0); }
  // What 1 of the group's codes is worth.
  HWY_INLINE float step(uint32_t g, size_t r) const { return steps_.steps[g * kStripHeads + r]; }

 private:
  static HWY_INLINE size_t LanesAt(uint32_t g, size_t r) { return (g * kStripHeads + r) * kLanes; }
  static HWY_INLINE size_t CodesAt(uint32_t g, size_t r) {
    return (g * kStripHeads + r) * kDecodeTile;
  }

  template <size_t kRows, bool kAllSeen>
  HWY_INLINE void RoundGroups(uint32_t first, uint32_t count, LineAsker* asker) {
    LineAsker local = *asker;  // a member or the pointer's target would be stored again and again
    FindLargest<kRows, kAllSeen>(first, count, &local);
    steps_.Set(LargestOfRows(count), CodeLimit(kDigits), value_.middle);
    RoundRows<kRows, kAllSeen>(first, count, &local);
    *asker = local;
  }
  // Finds the largest products, to scratch.lanes.
  template <size_t kRows, bool kAllSeen>
  HWY_INLINE void FindLargest(uint32_t first, uint32_t count, LineAsker* asker) const {
    const float* const scales = scratch_.value_scales + first * kDecodeTile;
    const float* const scores = scratch_.scores;
    float* const lanes = scratch_.lanes;
    for (uint32_t g = 0; g < count; ++g) {
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        asker->Ask<kLinesToScale>();
        const TileRow64 x = TileRow64::Load(scores + r * kDecodeTile)
                                .Times(SeenOf<kAllSeen>(r, scales + g * kDecodeTile));
        hn::StoreU(x.LargestAcross(), DF(), lanes + LanesAt(g, r));
      }
    }
  }
  // Writes the codes. Adds what they leave out, and the biases, to the offsets.
  template <size_t kRows, bool kAllSeen>
  HWY_INLINE void RoundRows(uint32_t first, uint32_t count, LineAsker* asker) const {
    const float* const scales = scratch_.value_scales + first * kDecodeTile;
    const float* const biases = scratch_.value_biases + first * kDecodeTile;
    const float* const scores = scratch_.scores;
    int8_t* const codes = scratch_.codes;
    const bool biased = value_.biased;
    for (uint32_t g = 0; g < count; ++g) {
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        asker->Ask<kLinesToRound>();
        const TileRow64 weights = TileRow64::Load(scores + r * kDecodeTile);
        const TileRow64 x = weights.Times(SeenOf<kAllSeen>(r, scales + g * kDecodeTile));
        const VF sum = StoreRounded<kDigits>(x, steps_.inverses[g * kStripHeads + r],
                                             codes + CodesAt(g, r), kWeightDigitPitch);
        const VF middle = hn::Set(DF(), steps_.middles[g * kStripHeads + r]);
        AddOffset(first + g, r, [&](VF before) HWY_ATTR {
          if (biased) {
            before = weights.SumInOrder(SeenOf<kAllSeen>(r, biases + g * kDecodeTile), before);
          }
          return hn::MulAdd(sum, middle, before);
        });
      }
    }
  }

  // Returns a group's scales or biases: 0, even for NaN, where the row head does not see the token.
  template <bool kAllSeen>
  HWY_INLINE TileRow64 SeenOf(size_t r, const float* parameters) const {
    const TileRow64 x = TileRow64::Load(parameters);
    if constexpr (kAllSeen) return x;
    const SeenTokens seen(strip_.seen[r]);
    return {seen.Keep(0, x.v0), seen.Keep(1, x.v1), seen.Keep(2, x.v2), seen.Keep(3, x.v3)};
  }

  // Joins lanes: lane kStripHeads g + r of the result is the largest of the lanes at (g, r).
  HWY_INLINE VF LargestOfRows(uint32_t count) const {
    if (count <= kChunkGroups / 2) return JoinedRows<JoinByMax>::Of8(scratch_.lanes);
    return JoinedRows<JoinByMax>::Of16(scratch_.lanes);
  }
  // Replaces the offsets of a group of values by add(offset).
  template <class Add>
  HWY_INLINE void AddOffset(uint32_t group, size_t r, const Add& add) const {
    float* const to = offsets_ + r * offset_pitch_ + group * offset_repeats_ * kLanes;
    hn::StoreU(add(hn::LoadU(DF(), to)), DF(), to);
    if (HWY_LIKELY(offset_repeats_ == 1)) return;
    for (uint32_t i = 1; i < offset_repeats_; ++i) {
      hn::StoreU(add(hn::LoadU(DF(), to + i * kLanes)), DF(), to + i * kLanes);
    }
  }

  const DecodeTensor& value_;
  const DecodeScratch& scratch_;
  const DecodeStrip& strip_;
  const uint32_t offset_repeats_;  // of a group of values
  const size_t offset_pitch_;      // from a row head to the next
  float* const offsets_;           // of the strip's first row head
  WeightSteps steps_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
