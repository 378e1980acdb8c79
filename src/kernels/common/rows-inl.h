// Elements and packed codes in vectors and bytes, for one SIMD target: included once per target.
//
// Byte-identical with quant/codec.h. Any alignment.
#if defined(PREFIXD_KERNELS_COMMON_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_COMMON_ROWS_INL_H_
#undef PREFIXD_KERNELS_COMMON_ROWS_INL_H_
#else
#define PREFIXD_KERNELS_COMMON_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

#include "quant/codec.h"
#include "quant/format.h"

// HAVE_AVX2: x86 from AVX2 on, where conversions of half precision round like the codec and bit
// fields can be deposited and extracted. HAVE_PAIRS: x86 from AVX3_DL on, where one instruction
// multiplies and adds groups of bytes (VNNI).
#undef PREFIXD_KERNELS_HAVE_AVX2
#undef PREFIXD_KERNELS_HAVE_PAIRS
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX2
#define PREFIXD_KERNELS_HAVE_AVX2 1
#else
#define PREFIXD_KERNELS_HAVE_AVX2 0
#endif

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3_DL
#define PREFIXD_KERNELS_HAVE_PAIRS 1
#else
#define PREFIXD_KERNELS_HAVE_PAIRS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that every group of 32 elements is whole vectors.
using DF = hn::CappedTag<float, 16>;
using DI = hn::Rebind<int32_t, DF>;
using DU = hn::Rebind<uint32_t, DF>;
using DHalf = hn::Rebind<hwy::float16_t, DF>;
using DU16 = hn::Rebind<uint16_t, DF>;
using DU8 = hn::Rebind<uint8_t, DF>;
using DI8 = hn::Rebind<int8_t, DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;

HWY_INLINE VF LoadHalf(const std::byte* from) {
#if PREFIXD_KERNELS_HAVE_AVX2
  return hn::PromoteTo(DF(), hn::LoadU(DHalf(), reinterpret_cast<const hwy::float16_t*>(from)));
#else
  const DI di;
  const auto bits = hn::BitCast(
      di, hn::PromoteTo(DU(), hn::LoadU(DU16(), reinterpret_cast<const uint16_t*>(from))));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(di, 0x8000)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(di, 0x7fff)));
  const VF finite = hn::Mul(hn::BitCast(DF(), magnitude), hn::Set(DF(), 0x1p112f));
  const auto quiet =
      hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(di, 31 << 23)), hn::Set(di, 0x400000));
  const auto special = hn::Or(hn::Or(magnitude, hn::Set(di, 0x7f800000)), quiet);
  const auto wide = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, (31 << 23) - 1)), special,
                                   hn::BitCast(di, finite));
  return hn::BitCast(DF(), hn::Or(sign, wide));
#endif
}

HWY_INLINE VF LoadBf16(const std::byte* from) {
  const auto bits = hn::PromoteTo(DU(), hn::LoadU(DU16(), reinterpret_cast<const uint16_t*>(from)));
  return hn::BitCast(DF(), hn::ShiftLeft<16>(bits));
}

// Loads a vector of elements.
template <quant::Dtype kDtype>
HWY_INLINE VF LoadWidened(const std::byte* from) {
  if constexpr (kDtype == quant::Dtype::kF16) {
    return LoadHalf(from);
  } else if constexpr (kDtype == quant::Dtype::kBf16) {
    return LoadBf16(from);
  } else {
    return hn::LoadU(DF(), reinterpret_cast<const float*>(from));
  }
}
// Calls `call.template operator()<dtype>()`.
template <class Call>
HWY_INLINE void WithDtype(quant::Dtype dtype, const Call& call) {
  if (dtype == quant::Dtype::kF16) return call.template operator()<quant::Dtype::kF16>();
  if (dtype == quant::Dtype::kBf16) return call.template operator()<quant::Dtype::kBf16>();
  call.template operator()<quant::Dtype::kF32>();
}

// Returns the bits of the nearest bfloat16, ties to even, in the low half of each lane.
HWY_INLINE hn::Vec<DU> Bf16Bits(VF value) {
  const DU du;
  const auto bits = hn::BitCast(du, value);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(hn::Set(du, 0x7fff), odd)));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), hn::Or(high, hn::Set(du, 0x40)),
                        rounded);
}

// Widens `count` elements.
inline HWY_ATTR void Widen(quant::Dtype dtype, const std::byte* from, size_t count, float* to) {
  const size_t lanes = hn::Lanes(DF());
  size_t i = 0;
  if (dtype == quant::Dtype::kF16) {
    for (; i + lanes <= count; i += lanes) hn::StoreU(LoadHalf(from + 2 * i), DF(), to + i);
  } else if (dtype == quant::Dtype::kBf16) {
    for (; i + lanes <= count; i += lanes) hn::StoreU(LoadBf16(from + 2 * i), DF(), to + i);
  }
  quant::WidenToFloat(dtype, from + i * (dtype == quant::Dtype::kF32 ? 4 : 2), count - i, to + i);
}

inline HWY_ATTR void Narrow(quant::Dtype dtype, const float* from, size_t count, std::byte* to) {
  const size_t lanes = hn::Lanes(DF());
  size_t i = 0;
  if (dtype == quant::Dtype::kBf16) {
    for (; i + lanes <= count; i += lanes) {
      const auto bits = hn::BitCast(DI(), Bf16Bits(hn::LoadU(DF(), from + i)));
      hn::StoreU(hn::DemoteTo(DU16(), bits), DU16(), reinterpret_cast<uint16_t*>(to + 2 * i));
    }
  }
#if PREFIXD_KERNELS_HAVE_AVX2
  if (dtype == quant::Dtype::kF16) {
    for (; i + lanes <= count; i += lanes) {
      hn::StoreU(hn::DemoteTo(DHalf(), hn::LoadU(DF(), from + i)), DHalf(),
                 reinterpret_cast<hwy::float16_t*>(to + 2 * i));
    }
  }
#endif
  quant::NarrowFromFloat(dtype, from + i, count - i,
                         to + i * (dtype == quant::Dtype::kF32 ? 4 : 2));
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
