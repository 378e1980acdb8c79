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

// Rounds a strip's weights times scales of up to kChunkGroups groups to codes in scratch.codes.
template <uint32_t kDigits>
class WeightCodes {
 public:
  static constexpr size_t kDigitPitch = size_t{kChunkGroups} * kStripHeads * kDecodeTile;

  HWY_INLINE WeightCodes(const DecodeTensor& value, const DecodeScratch& scratch,
                         const DecodeStrip& strip)
      : value_(value), scratch_(scratch), strip_(strip) {}

  // Rounds groups [first, first + count).
  template <size_t kRows>
  HWY_INLINE void Round(uint32_t first, uint32_t count, LineAsker* asker) {
    if (strip_.all_seen()) return RoundGroups<kRows, true>(first, count, asker);
    RoundGroups<kRows, false>(first, count, asker);
  }

  // Codes of the g-th of those groups: [kRows][kDecodeTile], the next digit kDigitPitch later.
  HWY_INLINE const int8_t* codes(uint32_t g) const { return scratch_.codes + CodesAt(g, 0); }
  // What 1 of the group's codes is worth.
  HWY_INLINE float step(uint32_t g, size_t r) const { return steps_[g * kStripHeads + r]; }
  // What the group's codes leave out, for each of its channels.
  HWY_INLINE float offset(uint32_t g, size_t r) const { return offsets_[g * kStripHeads + r]; }

 private:
  static HWY_INLINE size_t LanesAt(uint32_t g, size_t r) { return (g * kStripHeads + r) * kLanes; }
  static HWY_INLINE size_t CodesAt(uint32_t g, size_t r) {
    return (g * kStripHeads + r) * kDecodeTile;
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
  // Writes the codes, and what they leave out to scratch.lanes.
  template <size_t kRows, bool kAllSeen>
  HWY_INLINE void RoundRows(uint32_t first, uint32_t count, LineAsker* asker) const {
    const DF df;
    const float* const scales = scratch_.value_scales + first * kDecodeTile;
    const float* const biases = scratch_.value_biases + first * kDecodeTile;
    const float* const scores = scratch_.scores;
    float* const lanes = scratch_.lanes;
    int8_t* const codes = scratch_.codes;
    const bool biased = value_.biased;
    for (uint32_t g = 0; g < count; ++g) {
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        asker->Ask<kLinesToRound>();
        const TileRow64 weights = TileRow64::Load(scores + r * kDecodeTile);
        const TileRow64 x = weights.Times(SeenOf<kAllSeen>(r, scales + g * kDecodeTile));
        const VF inverse = hn::Set(df, inverses_[g * kStripHeads + r]);
        const TileCodes64 rounded{RoundedProduct(x.v0, inverse), RoundedProduct(x.v1, inverse),
                                  RoundedProduct(x.v2, inverse), RoundedProduct(x.v3, inverse)};
        const VI sum = rounded.template Store<kDigits>(codes + CodesAt(g, r), kDigitPitch);
        VF offset = hn::Mul(hn::ConvertTo(df, sum), hn::Set(df, middles_[g * kStripHeads + r]));
        if (biased) {
          offset = weights.SumOfProducts(SeenOf<kAllSeen>(r, biases + g * kDecodeTile), offset);
        }
        hn::StoreU(offset, df, lanes + LanesAt(g, r));
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

  // Sets the steps from the largest products.
  HWY_INLINE void SetSteps(VF largest) {
    const DF df;
    const VF limit = hn::Set(df, CodeLimit(kDigits));
    const auto tiny = hn::Lt(largest, hn::Set(df, 1e-30f));  // false for NaN
    const VF step = hn::Mul(largest, hn::Set(df, 1 / CodeLimit(kDigits)));
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
