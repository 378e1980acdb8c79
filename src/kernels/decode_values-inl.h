// Adds a tile's values by their weights, for one SIMD target: included once per target.
//
// With w the weights, v the stored codes of a group: the sum over tokens of w * (scale * v + bias).
// w * scale becomes codes c * step, c signed bytes, for each group of each tile; what rounding
// leaves costs least where v is taken from the middle of its range, hence the term
// middle * (sum(w scale) - step * sum(c)).
#if defined(PREFIXD_KERNELS_DECODE_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_VALUES_INL_H_
#undef PREFIXD_KERNELS_DECODE_VALUES_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_VALUES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/decode_dot-inl.h"
#include "kernels/decode_job.h"
#include "kernels/decode_keys-inl.h"
#include "kernels/decode_softmax-inl.h"
#include "kernels/decode_tile-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/tile_row-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Groups whose weights are rounded together: with kStripHeads rows, a vector of them.
inline constexpr uint32_t kChunkGroups = kLanes / kStripHeads;

// The sum of the lanes of each of 16 vectors: lane r is that of lanes[16 r ...].
HWY_INLINE VF SumOfRows(const float* lanes) {
  const auto load = [lanes](size_t i) HWY_ATTR { return _mm512_loadu_ps(lanes + kLanes * i); };
  const auto halves = [&](size_t i) HWY_ATTR {
    const __m512 a = load(i), b = load(i + 8);
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  };
  const auto quarters = [&](size_t i) HWY_ATTR {
    const __m512 a = halves(i), b = halves(i + 4);
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  const auto unpacked = [](__m512 a, __m512 b) HWY_ATTR {
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  };
  const __m512 even = unpacked(quarters(0), quarters(2));
  const __m512 odd = unpacked(quarters(1), quarters(3));
  const __m512 sums = unpacked(even, odd);
  return VF{_mm512_shuffle_f32x4(sums, sums, 0xd8)};
}

// Codes of a tile's tokens.
struct TileCodes64 {
  VI v0, v1, v2, v3;
  HWY_INLINE VI SumAcross() const { return hn::Add(hn::Add(v0, v1), hn::Add(v2, v3)); }
  // As their one or two digits.
  HWY_INLINE void Store(uint32_t digits, int8_t* to, size_t digit_pitch) const {
    if (digits == 1) return StoreBytes(to);
    const TileCodes64 high{HighDigit(v0), HighDigit(v1), HighDigit(v2), HighDigit(v3)};
    const TileCodes64 low{LowDigit(v0, high.v0), LowDigit(v1, high.v1), LowDigit(v2, high.v2),
                          LowDigit(v3, high.v3)};
    high.StoreBytes(to);
    low.StoreBytes(to + digit_pitch);
  }

 private:
  HWY_INLINE void StoreBytes(int8_t* to) const {
    const __m512i first = _mm512_packs_epi32(v0.raw, v1.raw);
    const __m512i second = _mm512_packs_epi32(v2.raw, v3.raw);
    // Packing takes 4 numbers of each vector in turns.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second)));
  }
};

// Values of one format, one tile, one strip.
class TileValues {
 public:
  HWY_INLINE TileValues(const DecodeFormat& format, const DecodeScratch& scratch,
                        const DecodeTokens& tile, const DecodeStrip& strip)
      : value_(format.value),
        digits_(format.digits),
        scratch_(scratch),
        tile_(tile),
        strip_(strip) {}

  // Weights of groups [first, first + count) to codes.
  HWY_INLINE void RoundWeights(uint32_t first, uint32_t count, LineAsker* asker) {
    const DF df;
    for (uint32_t g = 0; g < count; ++g) {
      for (uint32_t r = 0; r < strip_.rows; ++r) {
        asker->Ask<kLinesToScale>();
        const TileRow64 x = Weighted(first + g, r);
        const VF largest =
            hn::Max(hn::Max(hn::Abs(x.v0), hn::Abs(x.v1)), hn::Max(hn::Abs(x.v2), hn::Abs(x.v3)));
        hn::StoreU(largest, df, LanesOf(g, r));
      }
    }
    const VF largest = MaxOfRows(scratch_.lanes);
    const VF limit = hn::Set(df, CodeLimit(digits_));
    const auto tiny = hn::Lt(largest, hn::Set(df, 1e-30f));  // false for NaN
    alignas(64) float inverses[kLanes];
    hn::Store(hn::IfThenZeroElse(tiny, hn::Div(limit, largest)), df, inverses);
    hn::Store(hn::Div(largest, limit), df, steps_);
    for (uint32_t g = 0; g < count; ++g) {
      for (uint32_t r = 0; r < strip_.rows; ++r) {
        asker->Ask<kLinesToRound>();
        RoundRow(first, g, r, inverses);
      }
    }
    hn::Store(SumOfRows(scratch_.lanes), df, offsets_);
  }

  // sums = sums * corrections + dots, of group `first` + g.
  template <CodeKind kKind, size_t kRows>
  HWY_INLINE void AddGroup(const TileCodes& codes, LineAsker* asker, uint32_t first, uint32_t g,
                           float* sums, size_t pitch) const {
    DotInput in;
    in.codes[0] = codes.half[0] + (first + g) * codes.group_stride;
    in.stride = codes.stride;
    in.asker = asker;
    in.steps = (tile_.tokens + 3) / 4;
    in.factors = CodesOf(g, 0);
    in.row_pitch = kDecodeTile;
    in.digit_pitch = kDigitPitch;
    in.digits = digits_;
    float* to = sums + (first + g) * value_.group;
    if (value_.group == 32) return AddVectors<kKind, kRows, 2>(in, g, to, pitch);
    constexpr size_t kBytes = kKind == CodeKind::kNibbles ? 128 : 256;  // of 64 channels
    for (uint32_t c = 0; c < value_.group; c += 64, in.codes[0] += kBytes) {
      AddVectors<kKind, kRows, 4>(in, g, to + c, pitch);
    }
  }

 private:
  static constexpr size_t kDigitPitch = size_t{kChunkGroups} * kStripHeads * kDecodeTile;

  HWY_INLINE float* LanesOf(uint32_t g, uint32_t r) const {
    return scratch_.lanes + (g * kStripHeads + r) * kLanes;
  }
  HWY_INLINE int8_t* CodesOf(uint32_t g, uint32_t r) const {
    return scratch_.codes + (g * kStripHeads + r) * kDecodeTile;
  }
  // Weights times the group's scales. A token without weight counts as 0 even where its scale is
  // NaN.
  HWY_INLINE TileRow64 Weighted(uint32_t group, uint32_t r) const {
    return Times(r, scratch_.value_scales + group * kDecodeTile);
  }
  HWY_INLINE TileRow64 Times(uint32_t r, const float* parameters) const {
    const TileRow64 x =
        TileRow64::Load(scratch_.scores + r * kDecodeTile).Times(TileRow64::Load(parameters));
    const SeenTokens seen(strip_.seen[r]);
    if (seen.all()) return x;
    return {seen.Keep(0, x.v0), seen.Keep(1, x.v1), seen.Keep(2, x.v2), seen.Keep(3, x.v3)};
  }

  HWY_INLINE void RoundRow(uint32_t first, uint32_t g, uint32_t r, const float* inverses) {
    const DF df;
    const TileRow64 x = Weighted(first + g, r);
    const VF inverse = hn::Set(df, inverses[g * kStripHeads + r]);
    int8_t* to = CodesOf(g, r);
    const auto code = [inverse](VF part) HWY_ATTR { return RoundToCode(hn::Mul(part, inverse)); };
    const TileCodes64 codes{code(x.v0), code(x.v1), code(x.v2), code(x.v3)};
    codes.Store(digits_, to, kDigitPitch);
    const VI sum = codes.SumAcross();
    const VF step = hn::Set(df, steps_[g * kStripHeads + r]);
    const VF exact = hn::Mul(x.SumAcross(), hn::Set(df, value_.whole()));
    const VF rounding = hn::NegMulAdd(hn::ConvertTo(df, sum), step, exact);
    VF offset = hn::Mul(rounding, hn::Set(df, value_.middle));
    if (value_.biased) {
      const float* biases = scratch_.value_biases + (first + g) * kDecodeTile;
      offset = hn::Add(offset, Times(r, biases).SumAcross());
    }
    hn::StoreU(offset, df, LanesOf(g, r));
  }

  template <CodeKind kKind, size_t kRows, size_t kVectors>
  HWY_INLINE void AddVectors(const DotInput& in, uint32_t g, float* sums, size_t pitch) const {
    const DF df;
    DotSums<kRows, kVectors> dots;
    DotValues::Run<kKind>(in, &dots);
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      const VF step = hn::Set(df, steps_[g * kStripHeads + r]);
      const VF offset = hn::Set(df, offsets_[g * kStripHeads + r]);
      const VF correction = hn::Set(df, strip_.corrections[r]);
      float* to = sums + r * pitch;
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) {
        const VF before = hn::MulAdd(hn::LoadU(df, to + v * kLanes), correction, offset);
        hn::StoreU(hn::MulAdd(hn::ConvertTo(df, dots.of[r][v]), step, before), df, to + v * kLanes);
      }
    }
  }

  const DecodeTensor& value_;
  const uint32_t digits_;
  const DecodeScratch& scratch_;
  const DecodeTokens& tile_;
  const DecodeStrip& strip_;
  alignas(64) float steps_[kLanes];
  alignas(64) float offsets_[kLanes];
};

template <CodeKind kKind, size_t kRows>
HWY_NOINLINE HWY_ATTR void AddTile(const DecodeJob& job, const DecodeFormat& format,
                                   const DecodeUnit& unit, const DecodeTokens& tile,
                                   LineAsker* asker, const DecodeStrip& strip,
                                   const DecodeScratch& scratch) {
  const TileCodes codes = ValueCodesOf(format.value, unit, tile);
  TileValues values(format, scratch, tile, strip);
  float* const sums = job.sums.values + strip.first * job.value_pitch;
  for (uint32_t first = 0; first < format.value.groups; first += kChunkGroups) {
    const uint32_t count = HWY_MIN(kChunkGroups, format.value.groups - first);
    values.RoundWeights(first, count, asker);
    for (uint32_t g = 0; g < count; ++g) {
      values.AddGroup<kKind, kRows>(codes, asker, first, g, sums, job.value_pitch);
    }
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
