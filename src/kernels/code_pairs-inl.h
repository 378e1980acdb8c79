// Products of codes by an instruction that multiplies pairs of 16 bits: included once per target.
#if defined(PREFIXD_KERNELS_CODE_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CODE_PAIRS_INL_H_
#undef PREFIXD_KERNELS_CODE_PAIRS_INL_H_
#else
#define PREFIXD_KERNELS_CODE_PAIRS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/attend_slice.h"
#include "kernels/code_strip-inl.h"
#include "kernels/gemm-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/softmax-inl.h"
#include "kernels/tile_row-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// An int32_t of the scratch is a pair: two dimensions of a query row or a key, two tokens of values
// or weights.
class PairProducts {
 public:
  using Code = int16_t;  // of a stored element on its way into the tile

  HWY_INLINE PairProducts(const AttendJob& job, const AttendScratch& scratch)
      : code_(scratch.code),
        key_pitch_(scratch.key_pitch),
        value_pitch_(scratch.value_pitch),
        key_group_(job.key_group),
        value_group_(job.value_group) {}

  HWY_INLINE void StoreQuery(uint32_t row, size_t dimension, VI codes) const {
    int16_t* to = reinterpret_cast<int16_t*>(code_.query + row * key_pitch_ / 2) + dimension;
    hn::StoreU(hn::DemoteTo(DI16(), codes), DI16(), to);
  }

  // Puts 16 rows of codes into the tile, as tokens slot ...
  HWY_INLINE void LayKeys(uint32_t slot) const {
    TransposeRows(code_.key_rows, key_pitch_ / 2, key_pitch_ / 2, code_.keys + slot, kTileTokens);
  }
  HWY_INLINE void LayValues(uint32_t slot) const {
    const size_t pitch = value_pitch_;  // a local: stores could change a member
    const auto* even = reinterpret_cast<const uint16_t*>(code_.value_rows);
    for (uint32_t t = 0; t < kStepTokens; t += 2, even += 2 * pitch) {
      int32_t* to = code_.values + PairOfToken(slot + t) * pitch;
      for (size_t i = 0; i < pitch; i += hn::Lanes(DU())) {
        const auto low = hn::PromoteTo(DU(), hn::LoadU(DU16(), even + i));
        const auto high = hn::PromoteTo(DU(), hn::LoadU(DU16(), even + pitch + i));
        hn::StoreU(hn::BitCast(DI(), hn::Or(low, hn::ShiftLeft<16>(high))), DI(), to + i);
      }
    }
  }
  // Weights are stored less their middle: what that takes from each dot is the sum of the tile's
  // codes times the middle.
  HWY_INLINE void FinishTile() const {
    const DI di;
    const VI ones = hn::Set(di, 0x00010001);
    for (size_t d = 0; d < value_pitch_; d += hn::Lanes(di)) {
      VI sum = hn::Zero(di);
      for (uint32_t pair = 0; pair < kTileTokens / 2; ++pair) {
        const int32_t* codes = code_.values + pair * value_pitch_ + d;
        sum = PairElement::MulAdd(ones, hn::LoadU(di, codes), sum);
      }
      hn::StoreU(hn::Mul(sum, hn::Set(di, kWeightMiddle)), di, code_.value_corrections + d);
    }
  }

  HWY_INLINE void MultiplyKeys(const CodeStrip& strip, size_t group) const {
    const size_t pitch = key_pitch_ / 2;
    const size_t depth = key_group_ / 2;
    MultiplyStrip<PairElement>({.a = code_.query + strip.first * pitch + group * depth,
                                .a_pitch = pitch,
                                .b = code_.keys + group * depth * kTileTokens,
                                .b_pitch = kTileTokens,
                                .depth = depth,
                                .c = code_.dots,
                                .c_pitch = kTileTokens,
                                .columns = kTileTokens},
                               strip.rows);
  }
  HWY_INLINE void MultiplyValues(const CodeStrip& strip, size_t group) const {
    MultiplyStrip<PairElement>({.a = WeightsOf(group, 0),
                                .a_pitch = kTileTokens / 2,
                                .b = code_.values + group * value_group_,
                                .b_pitch = value_pitch_,
                                .depth = kTileTokens / 2,
                                .start = code_.value_corrections + group * value_group_,
                                .c = code_.dots,
                                .c_pitch = value_group_,
                                .columns = value_group_},
                               strip.rows);
  }
  // What the last product left. To be kept in a local: stores could change a member.
  class Dots {
   public:
    explicit HWY_INLINE Dots(const PairProducts& products) : dots_(products.code_.dots) {}
    // 16 of them.
    HWY_INLINE VF From(size_t at) const { return hn::ConvertTo(DF(), hn::LoadU(DI(), dots_ + at)); }

   private:
    const int32_t* const dots_;
  };

  // The nearest integers, from 0 to 65535, in the order of PairOfToken.
  HWY_INLINE void StoreWeights(size_t group, uint32_t row, const TileRow64& weights) const {
    int32_t* to = WeightsOf(group, row);
    const __m512i middle = _mm512_set1_epi16(-kWeightMiddle);
    _mm512_storeu_si512(to, _mm512_xor_si512(weights.PackedLow(), middle));
    _mm512_storeu_si512(to + kTileTokens / 4, _mm512_xor_si512(weights.PackedHigh(), middle));
  }

 private:
  static constexpr int32_t kWeightMiddle = 1 << 15;

  // Token t of a tile, t even, and t + 1 make pair PairOfToken(t).
  static HWY_INLINE size_t PairOfToken(uint32_t t) {
    const uint32_t in_half = t % 32;
    return t / 32 * 16 + in_half % 16 / 4 * 4 + in_half / 16 * 2 + in_half % 4 / 2;
  }
  HWY_INLINE int32_t* WeightsOf(size_t group, uint32_t row) const {
    return code_.weights + (group * kStripRows + row) * (kTileTokens / 2);
  }

  const CodeScratch& code_;
  const size_t key_pitch_;
  const size_t value_pitch_;
  const size_t key_group_;
  const size_t value_group_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
