// Turns stored rows into floats and back, for one SIMD target: included once per target.
//
// Byte-identical with quant/codec.h: no step may be fused or reordered, hence the build's
// -ffp-contract=off and exact divisions. Any alignment.
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

#include "kernels/common/quantize_rows.h"
#include "quant/codec.h"
#include "quant/format.h"

// HAVE_F16C: conversions of half precision that round like the codec, on arm64 and on x86 from AVX2
// on; HAVE_BMI2: deposit and extract of bit fields, on x86 from AVX2 on. HAVE_PAIRS: x86 from
// AVX3_DL on, where one instruction multiplies and adds groups of bytes (VNNI). HAVE_SDOT: arm64,
// where most CPUs have such an instruction. HAVE_DECODE: fast decode, with these or with an
// instruction that multiplies and adds pairs of 16-bit numbers.
#undef PREFIXD_KERNELS_HAVE_F16C
#undef PREFIXD_KERNELS_HAVE_BMI2
#undef PREFIXD_KERNELS_HAVE_PAIRS
#undef PREFIXD_KERNELS_HAVE_SDOT
#undef PREFIXD_KERNELS_HAVE_DECODE
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX2
#define PREFIXD_KERNELS_HAVE_BMI2 1
#else
#define PREFIXD_KERNELS_HAVE_BMI2 0
#endif

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3_DL
#define PREFIXD_KERNELS_HAVE_PAIRS 1
#else
#define PREFIXD_KERNELS_HAVE_PAIRS 0
#endif

#if HWY_ARCH_ARM_A64
#define PREFIXD_KERNELS_HAVE_SDOT 1
#else
#define PREFIXD_KERNELS_HAVE_SDOT 0
#endif

#if PREFIXD_KERNELS_HAVE_BMI2 || PREFIXD_KERNELS_HAVE_SDOT
#define PREFIXD_KERNELS_HAVE_F16C 1
#define PREFIXD_KERNELS_HAVE_DECODE 1
#else
#define PREFIXD_KERNELS_HAVE_F16C 0
#define PREFIXD_KERNELS_HAVE_DECODE 0
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
#if PREFIXD_KERNELS_HAVE_F16C
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
HWY_INLINE VF LoadWidened(quant::Dtype dtype, const std::byte* from) {
  if (dtype == quant::Dtype::kF16) return LoadWidened<quant::Dtype::kF16>(from);
  if (dtype == quant::Dtype::kBf16) return LoadWidened<quant::Dtype::kBf16>(from);
  return LoadWidened<quant::Dtype::kF32>(from);
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
#if PREFIXD_KERNELS_HAVE_F16C
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

// What a dequantized product or sum is rounded to.
struct RoundToFloat {
  HWY_INLINE VF operator()(VF value) const { return value; }
};
struct RoundToBf16 {
  HWY_INLINE VF operator()(VF value) const {
    return hn::BitCast(DF(), hn::ShiftLeft<16>(Bf16Bits(value)));
  }
};
#if PREFIXD_KERNELS_HAVE_F16C
struct RoundToHalf {
  HWY_INLINE VF operator()(VF value) const {
    return hn::PromoteTo(DF(), hn::DemoteTo(DHalf(), value));
  }
};
#endif

// Spreads 8 codes of kBits bits each, from the low end of `packed`, to one byte each; and back.
template <int kBits>
HWY_INLINE uint64_t SpreadCodes(uint64_t packed) {
  constexpr uint64_t kMask = (1u << kBits) - 1;
#if PREFIXD_KERNELS_HAVE_BMI2
  return _pdep_u64(packed, kMask * 0x0101010101010101u);
#else
  uint64_t spread = 0;
  for (int i = 0; i < 8; ++i) spread |= (packed >> (kBits * i) & kMask) << (8 * i);
  return spread;
#endif
}
template <int kBits>
HWY_INLINE uint64_t GatherCodes(uint64_t spread) {
  constexpr uint64_t kMask = (1u << kBits) - 1;
#if PREFIXD_KERNELS_HAVE_BMI2
  return _pext_u64(spread, kMask * 0x0101010101010101u);
#else
  uint64_t packed = 0;
  for (int i = 0; i < 8; ++i) packed |= (spread >> (8 * i) & kMask) << (kBits * i);
  return packed;
#endif
}

// Returns the first kBytes bytes, little-endian. Loads pieces of machine size: a copy of 3, 5 or 6
// bytes into a word would go through memory and stall.
template <int kBytes>
HWY_INLINE uint64_t LoadWord(const std::byte* from) {
  if constexpr (kBytes == 1) {
    return std::to_integer<uint64_t>(*from);
  } else {
    constexpr int kPiece = kBytes >= 8 ? 8 : kBytes >= 4 ? 4 : 2;
    uint64_t word = 0;
    std::memcpy(&word, from, kPiece);
    if constexpr (kBytes > kPiece) {
      word |= LoadWord<kBytes - kPiece>(from + kPiece) << (8 * kPiece);
    }
    return word;
  }
}

template <int kBits>
HWY_INLINE void UnpackBits(const std::byte* from, size_t count, uint8_t* codes) {
  for (size_t i = 0; i < count; i += 8, from += kBits) {
    const uint64_t spread = SpreadCodes<kBits>(LoadWord<kBits>(from));
    std::memcpy(codes + i, &spread, 8);
  }
}
template <int kBits>
HWY_INLINE void PackBits(const uint8_t* codes, size_t count, std::byte* to) {
  for (size_t i = 0; i < count; i += 8, to += kBits) {
    const uint64_t packed =
        GatherCodes<kBits>(LoadWord<8>(reinterpret_cast<const std::byte*>(codes + i)));
    std::memcpy(to, &packed, kBits);
  }
}

// Returns the codes of one MLX row, a byte each: in place for 8 bits, otherwise in `unpacked`.
inline HWY_ATTR const uint8_t* AffineCodes(uint8_t bits, const std::byte* from, size_t count,
                                           uint8_t* unpacked) {
  switch (bits) {
    case 2:
      UnpackBits<2>(from, count, unpacked);
      break;
    case 3:
      UnpackBits<3>(from, count, unpacked);
      break;
    case 4:
      UnpackBits<4>(from, count, unpacked);
      break;
    case 5:
      UnpackBits<5>(from, count, unpacked);
      break;
    case 6:
      UnpackBits<6>(from, count, unpacked);
      break;
    default:
      return reinterpret_cast<const uint8_t*>(from);
  }
  return unpacked;
}
inline HWY_ATTR void StoreAffineCodes(uint8_t bits, const uint8_t* codes, size_t count,
                                      std::byte* to) {
  switch (bits) {
    case 2:
      return PackBits<2>(codes, count, to);
    case 3:
      return PackBits<3>(codes, count, to);
    case 4:
      return PackBits<4>(codes, count, to);
    case 5:
      return PackBits<5>(codes, count, to);
    case 6:
      return PackBits<6>(codes, count, to);
    default:
      std::memcpy(to, codes, count);
  }
}

template <class Round>
HWY_INLINE void AffineRow(const uint8_t* codes, const RowRange& rows, const float* scales,
                          const float* biases, float* to) {
  const Round round;
  const size_t group = rows.format->group_size;
  const size_t lanes = hn::Lanes(DF());
  for (size_t begin = 0; begin < rows.dim; begin += group) {
    const VF scale = hn::Set(DF(), *scales++);
    const VF bias = hn::Set(DF(), *biases++);
    for (size_t i = begin; i < begin + group; i += lanes) {
      const VF code = hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(DU8(), codes + i)));
      hn::StoreU(round(hn::Add(round(hn::Mul(code, scale)), bias)), DF(), to + i);
    }
  }
}

// Widens MLX scales and biases to floats, [rows.count][groups] each.
HWY_INLINE void WidenParameters(const RowRange& rows, const RowScratch& scratch) {
  const quant::TensorFormat& format = *rows.format;
  const size_t groups = rows.dim / format.group_size;
  Widen(format.dtype, rows.unit + rows.layout.scales_offset + size_t{rows.first} * rows.row.scales,
        groups * rows.count, scratch.scales);
  Widen(format.dtype, rows.unit + rows.layout.biases_offset + size_t{rows.first} * rows.row.biases,
        groups * rows.count, scratch.biases);
}

template <class Round>
HWY_INLINE void AffineRows(const RowRange& rows, const RowScratch& scratch, float* to,
                           size_t pitch) {
  const quant::TensorFormat& format = *rows.format;
  const size_t groups = rows.dim / format.group_size;
  WidenParameters(rows, scratch);
  const std::byte* codes =
      rows.unit + rows.layout.codes_offset + size_t{rows.first} * rows.row.codes;
  for (uint32_t t = 0; t < rows.count; ++t, codes += rows.row.codes) {
    AffineRow<Round>(AffineCodes(format.bits, codes, rows.dim, scratch.codes), rows,
                     scratch.scales + t * groups, scratch.biases + t * groups, to + t * pitch);
  }
}

HWY_INLINE float ScalarHalf(const std::byte* from) {
#if HWY_ARCH_ARM_A64
  __fp16 half;
  std::memcpy(&half, from, sizeof(half));
  return half;
#elif PREFIXD_KERNELS_HAVE_F16C
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return _cvtsh_ss(bits);
#else
  float value;
  quant::WidenToFloat(quant::Dtype::kF16, from, 1, &value);
  return value;
#endif
}

HWY_INLINE void ByteBlock(const std::byte* block, float* to) {
  const VF d = hn::Set(DF(), ScalarHalf(block));
  const int8_t* codes = reinterpret_cast<const int8_t*>(block + 2);
  for (size_t i = 0; i < 32; i += hn::Lanes(DF())) {
    const VF code = hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(DI8(), codes + i)));
    hn::StoreU(hn::Mul(code, d), DF(), to + i);
  }
}

// q4_0, q4_1, q5_0, q5_1: low nibbles are the first half; fifth bits stand before the nibbles.
template <bool kMinimum, bool kFifthBits>
HWY_INLINE void NibbleBlock(const std::byte* block, float* to) {
  const VF d = hn::Set(DF(), ScalarHalf(block));
  const VF minimum = kMinimum ? hn::Set(DF(), ScalarHalf(block + 2)) : hn::Zero(DF());
  const VF middle = hn::Set(DF(), kMinimum ? 0.0f : kFifthBits ? 16.0f : 8.0f);
  const std::byte* fifth_bits = block + (kMinimum ? 4 : 2);
  const std::byte* nibbles = fifth_bits + (kFifthBits ? 4 : 0);
  constexpr uint64_t kNibbles = 0x0f0f0f0f0f0f0f0f;
  alignas(64) uint8_t codes[32];
  for (size_t i = 0; i < 32; i += 8) {
    uint64_t word = (LoadWord<8>(nibbles + i % 16) >> (i < 16 ? 0 : 4)) & kNibbles;
    if (kFifthBits) word |= SpreadCodes<1>(LoadWord<1>(fifth_bits + i / 8)) << 4;
    std::memcpy(codes + i, &word, 8);
  }
  for (size_t i = 0; i < 32; i += hn::Lanes(DF())) {
    const VF code = hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(DU8(), codes + i)));
    const VF product = hn::Mul(hn::Sub(code, middle), d);
    hn::StoreU(kMinimum ? hn::Add(product, minimum) : product, DF(), to + i);
  }
}

HWY_INLINE void GgmlRow(const RowRange& rows, const std::byte* blocks, float* to) {
  const size_t block_bytes = rows.row.codes / (rows.dim / 32);
  for (size_t i = 0; i < rows.dim; i += 32, blocks += block_bytes) {
    switch (rows.format->codec) {
      case quant::Codec::kQ4_0:
        NibbleBlock<false, false>(blocks, to + i);
        break;
      case quant::Codec::kQ4_1:
        NibbleBlock<true, false>(blocks, to + i);
        break;
      case quant::Codec::kQ5_0:
        NibbleBlock<false, true>(blocks, to + i);
        break;
      case quant::Codec::kQ5_1:
        NibbleBlock<true, true>(blocks, to + i);
        break;
      default:
        ByteBlock(blocks, to + i);
        break;
    }
  }
}

// Reads raw elements that stand as [dim][slots].
HWY_INLINE void TransposedRows(const RowRange& rows, float* to, size_t pitch) {
  const size_t element = quant::DtypeBytes(rows.format->dtype);
  for (size_t c = 0; c < rows.dim; ++c) {
    const std::byte* from = rows.unit + (c * rows.layout.slots + rows.first) * element;
    for (size_t t = 0; t < rows.count; ++t) {
      quant::WidenToFloat(rows.format->dtype, from + t * element, 1, to + t * pitch + c);
    }
  }
}

// Decodes codes that are floats with the scalar codec, which is exact.
HWY_INLINE void BlockFloatRows(const RowRange& rows, float* to, size_t pitch) {
  for (uint32_t t = 0; t < rows.count; ++t) {
    const uint32_t token = rows.first + t;
    quant::DequantizeRow(*rows.format,
                         quant::RowOf(rows.unit, rows.layout, *rows.format, rows.dim, token),
                         {to + t * pitch, rows.dim});
  }
}

// to: [count][pitch]. `Round` rounds MLX values once after the product, once after the sum.
template <class Round>
HWY_INLINE void DequantizeRows(const RowRange& rows, const RowScratch& scratch, float* to,
                               size_t pitch) {
  if (rows.format->codec == quant::Codec::kMlxAffine) {
    return AffineRows<Round>(rows, scratch, to, pitch);
  }
  if (quant::IsBlockFloat(rows.format->codec)) return BlockFloatRows(rows, to, pitch);
  if (rows.format->layout == quant::Layout::kTransposed) return TransposedRows(rows, to, pitch);
  const std::byte* codes =
      rows.unit + rows.layout.codes_offset + size_t{rows.first} * rows.row.codes;
  for (uint32_t t = 0; t < rows.count; ++t, codes += rows.row.codes, to += pitch) {
    if (rows.format->codec == quant::Codec::kRaw) {
      Widen(rows.format->dtype, codes, rows.dim, to);
    } else {
      GgmlRow(rows, codes, to);
    }
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
