// Products of codes by vector instructions that add four products of bytes (VNNI): included once
// per target.
#if defined(PREFIXD_KERNELS_PREFILL_CODE_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_PREFILL_CODE_VECTORS_INL_H_
#undef PREFIXD_KERNELS_PREFILL_CODE_VECTORS_INL_H_
#else
#define PREFIXD_KERNELS_PREFILL_CODE_VECTORS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/prefill/code_factors-inl.h"
#include "kernels/prefill/code_strip-inl.h"
#include "kernels/prefill/gemm-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// A digit of a row is a row of the product.
template <class Digits>
class VectorProducts {
 public:
  explicit HWY_INLINE VectorProducts(const CodeFactors<Digits>& factors) : factors_(factors) {}

  // Whether nibbles are unpacked as they are multiplied with this many rows.
  static constexpr bool TakesNibbles(size_t rows) {
    return !Digits::kSignedValues && rows * Digits::kCount <= ByteElement<false>::kMaxRows;
  }

  HWY_INLINE void MultiplyKeys(const CodeStrip& strip, size_t group, const KeyWords& keys) const {
    if (keys.nibbles) return MultiplyKeysOf<NibbleKeyElement>(strip, group, keys);
    MultiplyKeysOf<ByteElement<false>>(strip, group, keys);
  }
  HWY_INLINE void MultiplyValues(const CodeStrip& strip, size_t group,
                                 const ValueWords& values) const {
    if (values.nibbles) return MultiplyValuesOf<NibbleValueElement>(strip, group, values);
    MultiplyValuesOf<ByteElement<Digits::kSignedValues>>(strip, group, values);
  }

 private:
  template <class Element>
  HWY_INLINE void MultiplyKeysOf(const CodeStrip& strip, size_t group, const KeyWords& keys) const {
    const size_t depth = factors_.key_group() / 4;
    const size_t first_word = group * depth / Element::kSteps * KeyWords::kTokens;
    const int8_t* query = factors_.QueryOf(strip.first, group) + factors_.FirstFactorOf(group);
    for (size_t half = 0; half < kTileTokens / KeyWords::kTokens; ++half) {
      MultiplyStrip<Element>({.a = reinterpret_cast<const int32_t*>(query),
                              .a_pitch = factors_.query_pitch() / 4,
                              .b = reinterpret_cast<const int32_t*>(keys.half[half]) + first_word,
                              .b_pitch = KeyWords::kTokens,
                              .depth = depth,
                              .c = factors_.dots() + half * KeyWords::kTokens,
                              .c_pitch = kTileTokens,
                              .columns = KeyWords::kTokens},
                             Digits::kCount * strip.rows);
    }
  }
  template <class Element>
  HWY_INLINE void MultiplyValuesOf(const CodeStrip& strip, size_t group,
                                   const ValueWords& values) const {
    MultiplyStrip<Element>(
        {.a = reinterpret_cast<const int32_t*>(factors_.WeightsOf(group, 0)),
         .a_pitch = kTileTokens / 4,
         .b = reinterpret_cast<const int32_t*>(values.OfGroup(group, factors_.value_group())),
         .b_pitch = values.quad_pitch,
         .depth = kTileTokens / 4,
         .c = factors_.dots(),
         .c_pitch = factors_.value_group(),
         .columns = factors_.value_group()},
        Digits::kCount * strip.rows);
  }

  const CodeFactors<Digits>& factors_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
