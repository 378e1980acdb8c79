// Loads elements of an engine's tensor and finds the least and the greatest of each group, for one
// SIMD target: included once per target.
//
// Handles as many groups at a time as a vector has lanes: what is computed once for a group is
// computed for all of them at once.
#if defined(PREFIXD_KERNELS_CONVERT_GROUP_EXTREMES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CONVERT_GROUP_EXTREMES_INL_H_
#undef PREFIXD_KERNELS_CONVERT_GROUP_EXTREMES_INL_H_
#else
#define PREFIXD_KERNELS_CONVERT_GROUP_EXTREMES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/common/store_codes-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Elements of an engine's tensor.
struct FloatElements {
  static constexpr size_t kBytes = 4;
  static constexpr bool kInPairs = false;
  static HWY_INLINE VF Load(const std::byte* from) {
    return hn::LoadU(DF(), reinterpret_cast<const float*>(from));
  }
};
struct HalfElements {
  static constexpr size_t kBytes = 2;
  static constexpr bool kInPairs = false;
  static HWY_INLINE VF Load(const std::byte* from) { return LoadHalf(from); }
};
struct Bf16Elements {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE VF Load(const std::byte* from) { return LoadBf16(from); }

  // Loads two neighbours a lane; EvenOf and OddOf return one of them. Half the instructions.
  static constexpr bool kInPairs = true;
  static HWY_INLINE hn::Vec<DU> LoadPairs(const std::byte* from) {
    return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(from));
  }
  static HWY_INLINE VF EvenOf(hn::Vec<DU> pairs) {
    return hn::BitCast(DF(), hn::ShiftLeft<16>(pairs));
  }
  static HWY_INLINE VF OddOf(hn::Vec<DU> pairs) {
    return hn::BitCast(DF(), hn::And(pairs, hn::Set(DU(), 0xffff0000)));
  }
};

// At most kLanes groups, where they stand in the tensor.
template <class Elements>
struct Groups {
  const std::byte* const* first;  // [count]
  size_t count;
  size_t size;  // elements of each

  // Returns the first element of group `i` that `wanted` accepts, NaN if there is none.
  template <class Wanted>
  HWY_INLINE float Find(size_t i, const Wanted& wanted) const {
    alignas(64) float values[128];
    for (size_t e = 0; e < size; e += kLanes) {
      hn::Store(Elements::Load(first[i] + e * Elements::kBytes), DF(), values + e);
    }
    for (size_t e = 0; e < size; ++e) {
      if (wanted(values[e])) return values[e];
    }
    return std::numeric_limits<float>::quiet_NaN();
  }
};

// The least and the greatest element of some groups. Each of kCount groups has kLanes / kCount
// lanes, those of the first group first.
struct Extremes {
  VF low, high;
  HWY_INLINE Extremes() {}  // an implicit one lacks the target attributes that NEON needs
  HWY_INLINE Extremes(VF lowest, VF highest) : low(lowest), high(highest) {}
};

// kSize: elements of a group if there are kLanes groups and the compiler is to know it, else 0.
template <class Elements, size_t kSize>
class ExtremesFinder {
 public:
  explicit HWY_INLINE ExtremesFinder(const Groups<Elements>& groups) : groups_(groups) {}

  // Returns extremes of groups [first, first + kCount). Combines neighbouring lanes of both halves.
  template <size_t kCount>
  HWY_INLINE Extremes Find(size_t first) const {
    if constexpr (kCount == 1) {
      return FindInGroup(first);
    } else {
      const DF df;
      const Extremes a = Find<kCount / 2>(first), b = Find<kCount / 2>(first + kCount / 2);
      return {hn::Min(hn::ConcatEven(df, b.low, a.low), hn::ConcatOdd(df, b.low, a.low)),
              hn::Max(hn::ConcatEven(df, b.high, a.high), hn::ConcatOdd(df, b.high, a.high))};
    }
  }

 private:
  HWY_INLINE Extremes FindInGroup(size_t g) const {
    const VF one = hn::Set(DF(), 1.0f);
    // No such group: any number that is quick to compute with.
    if (kSize == 0 && g >= groups_.count) return {one, one};
    const size_t size = kSize == 0 ? groups_.size : kSize;
    const std::byte* const from = groups_.first[g];
    Extremes found;
    found.low = found.high = Elements::Load(from);
#pragma GCC unroll 3
    for (size_t e = kLanes; e < size; e += kLanes) {
      const VF x = Elements::Load(from + e * Elements::kBytes);
      found.low = hn::Min(found.low, x);
      found.high = hn::Max(found.high, x);
    }
    return found;
  }

  const Groups<Elements>& groups_;
};

// Compares 16-bit elements by their bits: a sign and, in the order of integers, a magnitude. The
// greatest as int16_t is the greatest element if one is above zero. The greatest as uint16_t is the
// least element if one is below zero.
template <class Elements, size_t kSize>
class SignedBitsFinder {
  using D = hn::Repartition<int16_t, DF>;
  using DUnsigned = hn::Repartition<uint16_t, DF>;

 public:
  explicit HWY_INLINE SignedBitsFinder(const Groups<Elements>& groups) : groups_(groups) {}

  // As ExtremesFinder::Find. The lower half of every lane is `high`, the upper half `low` without
  // its sign, both as int16_t.
  template <size_t kCount>
  HWY_INLINE VI Find(size_t first) const {
    if constexpr (kCount == 1) {
      return FindInGroup(first);
    } else {
      const DI di;
      const VI a = Find<kCount / 2>(first), b = Find<kCount / 2>(first + kCount / 2);
      return Greatest(hn::ConcatEven(di, b, a), hn::ConcatOdd(di, b, a));
    }
  }

  // Sets `all` to false if a group has a NaN, or no elements on one side of zero.
  static HWY_INLINE Extremes Widen(VI found, bool* all) {
    const DF df;
    const VF zero = hn::Zero(df);
    const auto bits = hn::BitCast(DU(), found);
    const Extremes extremes(hn::Neg(WidenHalves(hn::ShiftRight<16>(bits))), WidenHalves(bits));
    *all = hn::AllTrue(df, hn::And(hn::Le(extremes.low, zero), hn::Gt(extremes.high, zero)));
    return extremes;
  }

 private:
  HWY_INLINE VI FindInGroup(size_t g) const {
    const D d;
    const DUnsigned d_unsigned;
    if (kSize == 0 && g >= groups_.count) return hn::Set(DI(), 0x00010001);  // as in ExtremesFinder
    const size_t size = kSize == 0 ? groups_.size : kSize;
    const auto* const from = reinterpret_cast<const uint16_t*>(groups_.first[g]);
    auto widest = hn::LoadU(d_unsigned, from);
    auto high = hn::BitCast(d, widest);
#pragma GCC unroll 3
    for (size_t e = hn::Lanes(d); e < size; e += hn::Lanes(d)) {
      const auto x = hn::LoadU(d_unsigned, from + e);
      widest = hn::Max(widest, x);
      high = hn::Max(high, hn::BitCast(d, x));
    }
    const auto low = hn::BitCast(d, hn::Xor(widest, hn::Set(d_unsigned, 0x8000)));
    return Greatest(hn::BitCast(DI(), hn::InterleaveLower(d, high, low)),
                    hn::BitCast(DI(), hn::InterleaveUpper(d, high, low)));
  }
  static HWY_INLINE VI Greatest(VI a, VI b) {
    return hn::BitCast(DI(), hn::Max(hn::BitCast(D(), a), hn::BitCast(D(), b)));
  }
  // Widens the elements in the lower halves of lanes.
  static HWY_INLINE VF WidenHalves(hn::Vec<DU> bits) {
    alignas(64) uint16_t elements[kLanes];
    hn::Store(hn::TruncateTo(DU16(), bits), DU16(), elements);
    return Elements::Load(reinterpret_cast<const std::byte*>(elements));
  }

  const Groups<Elements>& groups_;
};

template <class Elements, size_t kSize>
HWY_NOINLINE Extremes FindExtremesOf(const Groups<Elements>& groups) {
  if constexpr (Elements::kBytes == 2) {
    using Finder = SignedBitsFinder<Elements, kSize>;
    bool all;
    const Extremes extremes = Finder::Widen(Finder(groups).template Find<kLanes>(0), &all);
    if (HWY_LIKELY(all)) return extremes;
  }
  return ExtremesFinder<Elements, kSize>(groups).template Find<kLanes>(0);
}
template <class Elements>
HWY_INLINE Extremes FindExtremes(const Groups<Elements>& groups) {
  return groups.size == 64 && groups.count == kLanes ? FindExtremesOf<Elements, 64>(groups)
                                                     : FindExtremesOf<Elements, 0>(groups);
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
