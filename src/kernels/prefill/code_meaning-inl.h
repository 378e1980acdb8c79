// What stored codes mean as bytes of full range, for one SIMD target: included once per target.
//
// Whatever its codec and width, an element is scale * byte + bias.
#if defined(PREFIXD_KERNELS_PREFILL_CODE_MEANING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_PREFILL_CODE_MEANING_INL_H_
#undef PREFIXD_KERNELS_PREFILL_CODE_MEANING_INL_H_
#else
#define PREFIXD_KERNELS_PREFILL_CODE_MEANING_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "quant/format.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

HWY_INLINE int RangeShift(const quant::TensorFormat& format) { return 8 - format.bits; }

// Returns the XOR mask that makes bytes unsigned: q8_0's are signed, others are not.
HWY_INLINE uint32_t SignsOf(const quant::TensorFormat& format) {
  return format.codec == quant::Codec::kQ8_0 ? 0x80808080u : 0u;
}

// Turns codes of a byte each into bytes of full range. Requires: count % 32 == 0.
HWY_INLINE void ToFullRange(const quant::TensorFormat& format, const uint8_t* codes, size_t count,
                            uint8_t* to) {
  const hn::FixedTag<uint8_t, 32> d;
  const hn::FixedTag<uint16_t, 16> d16;
  const auto signs = hn::BitCast(d, hn::Set(hn::FixedTag<uint32_t, 8>(), SignsOf(format)));
  for (size_t i = 0; i < count; i += 32) {
    const auto pairs = hn::BitCast(d16, hn::LoadU(d, codes + i));
    const auto moved = hn::BitCast(d, hn::ShiftLeftSame(pairs, RangeShift(format)));
    hn::StoreU(hn::Xor(moved, signs), d, to + i);
  }
}

// Scales and biases of one group of up to 16 tokens.
struct GroupParameters {
  VF scales, biases;
};

// Converts stored scales and biases to those of bytes of full range; the bias is that of byte 0, or
// 128 if kOfMiddle. Codes without biases are symmetric. Made once for a tile: the divisions would
// cost more than the rest.
template <bool kOfMiddle>
class ByteMeaning {
 public:
  HWY_INLINE ByteMeaning(const quant::TensorFormat& format, bool biased)
      : biased_(biased),
        middle_(hn::Set(DF(), static_cast<float>(1 << (format.bits - 1)))),
        one_(hn::Set(DF(), 1.0f / static_cast<float>(1 << RangeShift(format)))) {}

  HWY_INLINE bool biased() const { return biased_; }
  HWY_INLINE GroupParameters Of(const GroupParameters& stored) const {
    VF biases = biased_ ? stored.biases : hn::Neg(hn::Mul(stored.scales, middle_));
    if (kOfMiddle) biases = hn::MulAdd(stored.scales, middle_, biases);
    return {hn::Mul(stored.scales, one_), biases};
  }

 private:
  const bool biased_;
  const VF middle_, one_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
