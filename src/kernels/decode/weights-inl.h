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

#include "kernels/common/digits-inl.h"
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

// Rounds a strip's weights times scales of up to kChunkGroups groups to codes in scratch.codes.
template <uint32_t kDigits>
class WeightCodes {
 public:
  static constexpr size_t kDigitPitch = size_t{kChunkGroups} * kStripHeads * kTileTokens;

  HWY_INLINE WeightCodes(const DecodeTensor& value, const DecodeScratch& scratch,
                         const DecodeStrip& strip)
      : value_(value), scratch_(scratch), strip_(strip) {}

  // Rounds groups [first, first + count).
  template <size_t kRows>
  HWY_INLINE void Round(uint32_t first, uint32_t count, LineAsker* asker) {
    if (strip_.all_seen()) return RoundGroups<kRows, true>(first, count, asker);
    RoundGroups<kRows, false>(first, count, asker);
  }

  // Codes of the g-th of those groups: [kRows][kTileTokens], the next digit kDigitPitch later.
  HWY_INLINE const int8_t* codes(uint32_t g) const { return scratch_.codes + CodesAt(g, 0); }
  // What 1 of the group's codes is worth.
  HWY_INLINE float step(uint32_t g, size_t r) const { return steps_[g * kStripHeads + r]; }
  // What the group's codes leave out, for each of its channels.
  HWY_INLINE float offset(uint32_t g, size_t r) const { return offsets_[g * kStripHeads + r]; }

 private:
  static HWY_INLINE size_t LanesAt(uint32_t g, size_t r) { return (g * kStripHeads + r) * kLanes; }
  static HWY_INLINE size_t CodesAt(uint32_t g, size_t r) {
    return (g * kStripHeads + r) * kTileTokens;
  }

  template <size_t kRows, bool kAllSeen>
  HWY_INLINE void RoundGroups(uint32_t first, uint32_t count, LineAsker* asker) {
    LineAsker local = *asker;  // a member or the pointer's target would be stored again and again
    FindLargest<kRows, kAllSeen>(first, count, &local);
    SetSteps(Joined<JoinByMax>(count));
    RoundRows<kRows, kAllSeen>(first, count, &local);
    hn::Store(Joined<JoinByAdd>(count), DF(), offsets_);
    *asker = local;
  }
  // Finds the largest products, to scratch.lanes.
  template <size_t kRows, bool kAllSeen>
  HWY_INLINE void FindLargest(uint32_t first, uint32_t count, LineAsker* asker) const {
    const float* const scales = scratch_.value_scales + first * kTileTokens;
    const float* const scores = scratch_.scores;
    float* const lanes = scratch_.lanes;
    for (uint32_t g = 0; g < count; ++g) {
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        asker->Ask<kLinesToScale>();
        const TileRow64 x = TileRow64::Load(scores + r * kTileTokens)
                                .Times(SeenOf<kAllSeen>(r, scales + g * kTileTokens));
        hn::StoreU(x.LargestAcross(), DF(), lanes + LanesAt(g, r));
      }
    }
  }
  // Writes the codes, and what they leave out to scratch.lanes.
  template <size_t kRows, bool kAllSeen>
  HWY_INLINE void RoundRows(uint32_t first, uint32_t count, LineAsker* asker) const {
    const DF df;
    const float* const scales = scratch_.value_scales + first * kTileTokens;
    const float* const biases = scratch_.value_biases + first * kTileTokens;
    const float* const scores = scratch_.scores;
    float* const lanes = scratch_.lanes;
    int8_t* const codes = scratch_.codes;
    const bool biased = value_.biased;
    for (uint32_t g = 0; g < count; ++g) {
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        asker->Ask<kLinesToRound>();
        const TileRow64 weights = TileRow64::Load(scores + r * kTileTokens);
        const TileRow64 x = weights.Times(SeenOf<kAllSeen>(r, scales + g * kTileTokens));
        const VF inverse = hn::Set(df, inverses_[g * kStripHeads + r]);
        const TileFactors rounded{RoundedProduct(x.v0, inverse), RoundedProduct(x.v1, inverse),
                                  RoundedProduct(x.v2, inverse), RoundedProduct(x.v3, inverse)};
        int8_t* const to = codes + CodesAt(g, r);
        const VI sum = kDigits == 1 ? rounded.StoreOne(to) : rounded.StoreTwo(to, kDigitPitch);
        VF offset = hn::Mul(hn::ConvertTo(df, sum), hn::Set(df, middles_[g * kStripHeads + r]));
        if (biased) {
          offset = weights.SumOfProducts(SeenOf<kAllSeen>(r, biases + g * kTileTokens), offset);
        }
        hn::StoreU(offset, df, lanes + LanesAt(g, r));
      }
    }
  }

  // Returns a group's scales or biases: 0, even for NaN, where the row head does not see the token.
  template <bool kAllSeen>
  HWY_INLINE TileRow64 SeenOf(size_t r, const float* parameters) const {
    return TileRow64::Load(parameters).Of(kAllSeen ? kAllTokens : strip_.seen[r], 0);
  }

  // Sets the steps from the largest products.
  HWY_INLINE void SetSteps(VF largest) {
    const DF df;
    const VF limit = hn::Set(df, FactorLimit(kDigits));
    const auto tiny = hn::Lt(largest, hn::Set(df, 1e-30f));  // false for NaN
    const VF step = hn::Mul(largest, hn::Set(df, 1 / FactorLimit(kDigits)));
    hn::Store(hn::IfThenZeroElse(tiny, hn::Div(limit, largest)), df, inverses_);
    hn::Store(step, df, steps_);
    hn::Store(hn::Mul(step, hn::Set(df, -value_.middle)), df, middles_);
  }
  // Joins lanes: lane kStripHeads g + r of the result is that of the lanes at (g, r).
  template <class Join>
  HWY_INLINE VF Joined(uint32_t count) const {
    if (count <= kChunkGroups / 2) return JoinedRows<Join>::Of8(scratch_.lanes);
    return JoinedRows<Join>::Of16(scratch_.lanes);
  }

  const DecodeTensor& value_;
  const DecodeScratch& scratch_;
  const DecodeStrip& strip_;
  // [kChunkGroups][kStripHeads]
  alignas(64) float steps_[kLanes];
  alignas(64) float inverses_[kLanes];  // of the steps
  alignas(64) float middles_[kLanes];   // what 1 of the codes' sum is worth
  alignas(64) float offsets_[kLanes];
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
