// One number for each token of a tile, in registers: for the target whose tile is four vectors.
#if defined(PREFIXD_KERNELS_COMMON_TILE_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_COMMON_TILE_ROW_INL_H_
#undef PREFIXD_KERNELS_COMMON_TILE_ROW_INL_H_
#else
#define PREFIXD_KERNELS_COMMON_TILE_ROW_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/common/softmax-inl.h"
#include "kernels/prefill/attend_slice.h"
#include "kernels/prefill/blocks-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

using DI16 = hn::Rebind<int16_t, DF>;

// Returns the larger magnitude; NaN where both are NaN.
HWY_INLINE VF LargerSize(VF a, VF b) { return VF{_mm512_range_ps(a.raw, b.raw, 0b1011)}; }

// 2^x for any x: relative error below 3e-6, 2^-inf is 0, NaN stays NaN.
HWY_INLINE VF WeightExp2(VF x) {
  const DF df;
  const VF f{_mm512_reduce_ps(x.raw, 1)};  // x - floor(x)
  VF power = hn::MulAdd(hn::Set(df, 1.35341679e-2f), f, hn::Set(df, 5.20114606e-2f));
  power = hn::MulAdd(power, f, hn::Set(df, 2.41442757e-1f));
  power = hn::MulAdd(power, f, hn::Set(df, 6.93003834e-1f));
  power = hn::MulAdd(power, f, hn::Set(df, 1.00000259f));
  return VF{_mm512_scalef_ps(power.raw, x.raw)};  // times 2^floor(x)
}

// Named members and not an array: GCC at -O2 keeps arrays of vectors in memory.
struct TileRow64 {
  static constexpr size_t kLanes = kTileTokens / 4;
  VF v0, v1, v2, v3;

  static HWY_INLINE TileRow64 Fill(float value) {
    const VF v = hn::Set(DF(), value);
    return {v, v, v, v};
  }
  static HWY_INLINE TileRow64 Load(const float* from) {
    const DF df;
    return {hn::LoadU(df, from), hn::LoadU(df, from + kLanes), hn::LoadU(df, from + 2 * kLanes),
            hn::LoadU(df, from + 3 * kLanes)};
  }
  HWY_INLINE void Store(float* to) const {
    const DF df;
    hn::StoreU(v0, df, to);
    hn::StoreU(v1, df, to + kLanes);
    hn::StoreU(v2, df, to + 2 * kLanes);
    hn::StoreU(v3, df, to + 3 * kLanes);
  }
  // Return one vector whose lanes are still to be combined.
  HWY_INLINE VF SumAcross() const { return hn::Add(hn::Add(v0, v1), hn::Add(v2, v3)); }
  HWY_INLINE VF MaxAcross() const { return hn::Max(hn::Max(v0, v1), hn::Max(v2, v3)); }
  // Returns the largest magnitudes, in one vector.
  HWY_INLINE VF LargestAcross() const { return LargerSize(LargerSize(v0, v1), LargerSize(v2, v3)); }
  // Returns the numbers of `tokens`, and `other` for the rest.
  HWY_INLINE TileRow64 Of(TileTokens tokens, float other) const {
    if (tokens == kAllTokens) return *this;
    const VF rest = hn::Set(DF(), other);
    return {Blend<0>(tokens, v0, rest), Blend<1>(tokens, v1, rest), Blend<2>(tokens, v2, rest),
            Blend<3>(tokens, v3, rest)};
  }
  HWY_INLINE TileRow64 Plus(const TileRow64& other) const {
    return {hn::Add(v0, other.v0), hn::Add(v1, other.v1), hn::Add(v2, other.v2),
            hn::Add(v3, other.v3)};
  }
  HWY_INLINE TileRow64 Less(float value) const {
    const VF v = hn::Set(DF(), value);
    return {hn::Sub(v0, v), hn::Sub(v1, v), hn::Sub(v2, v), hn::Sub(v3, v)};
  }
  HWY_INLINE TileRow64 Times(const TileRow64& by) const {
    return {hn::Mul(v0, by.v0), hn::Mul(v1, by.v1), hn::Mul(v2, by.v2), hn::Mul(v3, by.v3)};
  }
  // this * by + sum
  HWY_INLINE TileRow64 MulAdd(const TileRow64& by, const TileRow64& sum) const {
    return {hn::MulAdd(v0, by.v0, sum.v0), hn::MulAdd(v1, by.v1, sum.v1),
            hn::MulAdd(v2, by.v2, sum.v2), hn::MulAdd(v3, by.v3, sum.v3)};
  }
  // cap * tanh
  HWY_INLINE TileRow64 Capped(float cap) const {
    return TileRow64{Tanh(v0), Tanh(v1), Tanh(v2), Tanh(v3)}.Times(Fill(cap));
  }
  // Returns `start` plus the products: one vector whose lanes are still to be added.
  HWY_INLINE VF SumOfProducts(const TileRow64& by, VF start) const {
    const VF early = hn::MulAdd(v1, by.v1, hn::MulAdd(v0, by.v0, start));
    return hn::Add(early, hn::MulAdd(v3, by.v3, hn::Mul(v2, by.v2)));
  }
  // The same, added one after the other.
  HWY_INLINE VF SumInOrder(const TileRow64& by, VF start) const {
    return hn::MulAdd(v3, by.v3,
                      hn::MulAdd(v2, by.v2, hn::MulAdd(v1, by.v1, hn::MulAdd(v0, by.v0, start))));
  }
  HWY_INLINE TileRow64 Exp2() const {
    return {WeightExp2(v0), WeightExp2(v1), WeightExp2(v2), WeightExp2(v3)};
  }

 private:
  template <int kVector>
  static HWY_INLINE VF Blend(TileTokens tokens, VF v, VF rest) {
    const auto lanes = static_cast<__mmask16>(tokens >> (kVector * kLanes));
    return VF{_mm512_mask_blend_ps(lanes, rest.raw, v.raw)};
  }
};

// Joins the lanes of each of some vectors to one number: lane r is that of lanes[16 r ...].
template <class Join>
class JoinedRows {
 public:
  static HWY_INLINE VF Of16(const float* lanes) {
    const auto halves = [&](size_t i) HWY_ATTR { return Halves(lanes, i, i + 8); };
    const __m512 even = Unpacked(Quarters(halves(0), halves(4)), Quarters(halves(2), halves(6)));
    const __m512 odd = Unpacked(Quarters(halves(1), halves(5)), Quarters(halves(3), halves(7)));
    const __m512 joined = Unpacked(even, odd);
    return VF{_mm512_shuffle_f32x4(joined, joined, 0xd8)};
  }
  // Lanes 8 ... 15 of the result repeat others.
  static HWY_INLINE VF Of8(const float* lanes) {
    const auto halves = [&](size_t i) HWY_ATTR { return Halves(lanes, i, i + 4); };
    const __m512 pairs = Unpacked(Quarters(halves(0), halves(1)), Quarters(halves(2), halves(3)));
    const __m512 joined = Join::Two(pairs, _mm512_permute_ps(pairs, 0x4e));
    const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 4, 12, 5, 13, 0, 8, 1, 9, 4, 12, 5, 13);
    return VF{_mm512_permutexvar_ps(order, joined)};
  }

 private:
  // Joins quarters of vectors: (first 0 and 2, first 1 and 3, second 0 and 2, second 1 and 3).
  static HWY_INLINE __m512 Halves(const float* lanes, size_t first, size_t second) {
    const __m512 a = _mm512_loadu_ps(lanes + 16 * first);
    const __m512 b = _mm512_loadu_ps(lanes + 16 * second);
    return Join::Two(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  // Joins (a, a, b, b) and (c, c, d, d) to (a, b, c, d).
  static HWY_INLINE __m512 Quarters(__m512 a, __m512 b) {
    return Join::Two(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
  // Joins each quarter's 4 lanes to 2, which alternate with those of the other vector.
  static HWY_INLINE __m512 Unpacked(__m512 a, __m512 b) {
    return Join::Two(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  }
};
struct JoinByMax {
  static HWY_INLINE __m512 Two(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
};
struct JoinByAdd {
  static HWY_INLINE __m512 Two(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
};
HWY_INLINE VF MaxOfRows(const float* lanes) { return JoinedRows<JoinByMax>::Of16(lanes); }
HWY_INLINE VF SumOfRows(const float* lanes) { return JoinedRows<JoinByAdd>::Of16(lanes); }

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
