// One number for each token of a tile, in registers: for the target whose tile is four vectors.
#if defined(PREFIXD_KERNELS_TILE_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_TILE_ROW_INL_H_
#undef PREFIXD_KERNELS_TILE_ROW_INL_H_
#else
#define PREFIXD_KERNELS_TILE_ROW_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/attend_slice.h"
#include "kernels/rows-inl.h"
#include "kernels/softmax-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

using DI16 = hn::Rebind<int16_t, DF>;

// Values of 17 bits, to the nearest integer; anything for others.
HWY_INLINE VI RoundToCode(VF value) {
  const VF magic = hn::Set(DF(), 0x1.8p23f);  // a sum of this size has no bits for a fraction
  return hn::Sub(hn::BitCast(DI(), hn::Add(value, magic)), hn::BitCast(DI(), magic));
}

HWY_INLINE void StoreCodes(VI codes, int16_t* to) {
  hn::StoreU(hn::DemoteTo(DI16(), codes), DI16(), to);
}

HWY_INLINE VF LoadInts(const int32_t* from) { return hn::ConvertTo(DF(), hn::LoadU(DI(), from)); }

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
  static HWY_INLINE TileRow64 Load(const int32_t* from) {
    return {LoadInts(from), LoadInts(from + kLanes), LoadInts(from + 2 * kLanes),
            LoadInts(from + 3 * kLanes)};
  }
  HWY_INLINE void Store(float* to) const {
    const DF df;
    hn::StoreU(v0, df, to);
    hn::StoreU(v1, df, to + kLanes);
    hn::StoreU(v2, df, to + 2 * kLanes);
    hn::StoreU(v3, df, to + 3 * kLanes);
  }
  HWY_INLINE float Sum() const {
    return hn::GetLane(hn::SumOfLanes(DF(), hn::Add(hn::Add(v0, v1), hn::Add(v2, v3))));
  }
  HWY_INLINE float Max() const {
    return hn::GetLane(hn::MaxOfLanes(DF(), hn::Max(hn::Max(v0, v1), hn::Max(v2, v3))));
  }
  // The first `count` numbers, `other` for the rest.
  HWY_INLINE TileRow64 First(uint32_t count, float other) const {
    if (count == kTileTokens) return *this;
    const VF rest = hn::Set(DF(), other);
    return {hn::IfThenElse(Seen(count, 0), v0, rest), hn::IfThenElse(Seen(count, 1), v1, rest),
            hn::IfThenElse(Seen(count, 2), v2, rest), hn::IfThenElse(Seen(count, 3), v3, rest)};
  }
  HWY_INLINE TileRow64 Times(const TileRow64& by) const {
    return {hn::Mul(v0, by.v0), hn::Mul(v1, by.v1), hn::Mul(v2, by.v2), hn::Mul(v3, by.v3)};
  }
  // this * by + sum
  HWY_INLINE TileRow64 MulAdd(const TileRow64& by, const TileRow64& sum) const {
    return {hn::MulAdd(v0, by.v0, sum.v0), hn::MulAdd(v1, by.v1, sum.v1),
            hn::MulAdd(v2, by.v2, sum.v2), hn::MulAdd(v3, by.v3, sum.v3)};
  }
  HWY_INLINE TileRow64 Exp2() const {
    return {HWY_NAMESPACE::Exp2(v0), HWY_NAMESPACE::Exp2(v1), HWY_NAMESPACE::Exp2(v2),
            HWY_NAMESPACE::Exp2(v3)};
  }
  // to: the nearest integers to this * factor, less `middle`.
  HWY_INLINE void StoreAsCodes(float factor, int32_t middle, int16_t* to) const {
    const VF by = hn::Set(DF(), factor);
    const VI less = hn::Set(DI(), middle);
    StoreCodes(hn::Sub(RoundToCode(hn::Mul(v0, by)), less), to);
    StoreCodes(hn::Sub(RoundToCode(hn::Mul(v1, by)), less), to + kLanes);
    StoreCodes(hn::Sub(RoundToCode(hn::Mul(v2, by)), less), to + 2 * kLanes);
    StoreCodes(hn::Sub(RoundToCode(hn::Mul(v3, by)), less), to + 3 * kLanes);
  }

 private:
  static HWY_INLINE hn::Mask<DF> Seen(uint32_t count, size_t vector) {
    return hn::FirstN(DF(), count < vector * kLanes ? 0 : count - vector * kLanes);
  }
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
