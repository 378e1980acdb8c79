// Converts packed rows of MLX and ggml to codes of a byte each and back, for one SIMD target:
// included once per target.
#if defined(PREFIXD_KERNELS_CONVERT_UNIT_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CONVERT_UNIT_ROWS_INL_H_
#undef PREFIXD_KERNELS_CONVERT_UNIT_ROWS_INL_H_
#else
#define PREFIXD_KERNELS_CONVERT_UNIT_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/convert/unit_step.h"
#include "quant/format.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Vectors of fixed size, since words and blocks are made of 16 bytes.
using D8 = hn::Full128<uint8_t>;
using D16 = hn::Full128<uint16_t>;
using D32 = hn::Full128<uint32_t>;
using D64 = hn::Full128<uint64_t>;
using V8 = hn::Vec<D8>;

HWY_INLINE V8 Load16(const uint8_t* from) { return hn::LoadU(D8(), from); }
HWY_INLINE V8 Load16(const std::byte* from) {
  return hn::LoadU(D8(), reinterpret_cast<const uint8_t*>(from));
}
HWY_INLINE void Store16(V8 bytes, uint8_t* to) { hn::StoreU(bytes, D8(), to); }
HWY_INLINE void Store16(V8 bytes, std::byte* to) {
  hn::StoreU(bytes, D8(), reinterpret_cast<uint8_t*>(to));
}
template <class V>  // a vector of any number of bytes
HWY_INLINE V LowNibbles(V bytes) {
  return hn::And(bytes, hn::Set(hn::DFromV<V>(), 15));
}
template <class V>
HWY_INLINE V HighNibbles(V bytes) {
  const hn::DFromV<V> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  return LowNibbles(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, bytes))));
}
// Requires: every byte is below 16.
template <class V>
HWY_INLINE V JoinNibbles(V low, V high) {
  const hn::DFromV<V> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  return hn::Or(low, hn::BitCast(d, hn::ShiftLeft<4>(hn::BitCast(d16, high))));
}

// Joins two neighbours to a byte, the first in its low nibble. Requires: every byte is below 16.
HWY_INLINE V8 JoinNeighbours(V8 first, V8 second) {
  const auto join = [](V8 bytes) HWY_ATTR {
    const auto wide = hn::BitCast(D16(), bytes);
    return hn::BitCast(D8(), hn::Or(wide, hn::ShiftRight<4>(wide)));
  };
  return hn::ConcatEven(D8(), join(second), join(first));
}

// MLX's 4 bits, 32 codes at a time: code 2i is in the low nibble of byte i, 2i + 1 in the high one.
HWY_INLINE void UnpackNibbles(const std::byte* from, size_t count, uint8_t* codes) {
  for (size_t i = 0; i < count; i += 32) {
    const V8 both = Load16(from + i / 2);
    const V8 even = LowNibbles(both), odd = HighNibbles(both);
    Store16(hn::InterleaveLower(even, odd), codes + i);
    Store16(hn::InterleaveUpper(D8(), even, odd), codes + i + 16);
  }
}
HWY_INLINE void PackNibbles(const uint8_t* codes, size_t count, std::byte* to) {
  const hn::CappedTag<uint8_t, 64> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  const hn::Half<decltype(d)> half;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto pairs = hn::BitCast(d16, hn::LoadU(d, codes + i));
    const auto joined = hn::Or(pairs, hn::ShiftRight<4>(pairs));
    hn::StoreU(hn::TruncateTo(half, joined), half, reinterpret_cast<uint8_t*>(to + i / 2));
  }
  for (; i < count; i += 32) {
    Store16(JoinNeighbours(Load16(codes + i), Load16(codes + i + 16)), to + i / 2);
  }
}

HWY_INLINE void UnpackCodes(uint8_t bits, const std::byte* from, size_t count, uint8_t* codes) {
  if (bits == 4) return UnpackNibbles(from, count, codes);
  const uint8_t* const unpacked = AffineCodes(bits, from, count, codes);
  if (unpacked != codes) std::memcpy(codes, unpacked, count);
}
HWY_INLINE void PackCodes(uint8_t bits, const uint8_t* codes, size_t count, std::byte* to) {
  if (bits == 4) return PackNibbles(codes, count, to);
  StoreAffineCodes(bits, codes, count, to);
}

// Codes of a ggml block: bytes, or nibbles (the first half low) with the fifth bits before them.
HWY_INLINE void UnpackBlock(uint8_t bits, const std::byte* from, uint8_t* codes) {
  if (bits == 8) {
    std::memcpy(codes, from, 32);
    return;
  }
  const V8 both = Load16(from + (bits == 5 ? 4 : 0));
  Store16(LowNibbles(both), codes);
  Store16(HighNibbles(both), codes + 16);
  for (size_t i = 0; bits == 5 && i < 32; i += 8) {
    const uint64_t fifth = SpreadCodes<1>(LoadWord<1>(from + i / 8)) << 4;
    const uint64_t word = LoadWord<8>(reinterpret_cast<const std::byte*>(codes + i)) | fifth;
    std::memcpy(codes + i, &word, 8);
  }
}
HWY_INLINE void PackBlock(uint8_t bits, const uint8_t* codes, std::byte* to) {
  if (bits == 8) {
    std::memcpy(to, codes, 32);
    return;
  }
  for (size_t i = 0; bits == 5 && i < 32; i += 8) {
    const uint64_t word = LoadWord<8>(reinterpret_cast<const std::byte*>(codes + i));
    to[i / 8] = static_cast<std::byte>(GatherCodes<1>(word >> 4 & 0x0101010101010101));
  }
  Store16(JoinNibbles(LowNibbles(Load16(codes)), LowNibbles(Load16(codes + 16))),
          to + (bits == 5 ? 4 : 0));
}

// Returns the number of bytes before the codes of a ggml block.
HWY_INLINE size_t BlockHead(const UnitStep& step) { return step.has_biases() ? 4 : 2; }

HWY_INLINE void LoadBlocks(const UnitStep& step, const std::byte* block, uint8_t* codes,
                           std::byte* scales, std::byte* biases) {
  const uint8_t bits = step.shape.format.bits;
  const size_t head = BlockHead(step);
  for (size_t g = 0; g < step.groups(); ++g, block += head + 4 * size_t{bits}) {
    std::memcpy(scales + 2 * g, block, 2);
    if (head == 4) std::memcpy(biases + 2 * g, block + 2, 2);
    UnpackBlock(bits, block + head, codes + 32 * g);
  }
}
HWY_INLINE void StoreBlocks(const UnitStep& step, const uint8_t* codes, const std::byte* scales,
                            const std::byte* biases, std::byte* block) {
  const uint8_t bits = step.shape.format.bits;
  const size_t head = BlockHead(step);
  for (size_t g = 0; g < step.groups(); ++g, block += head + 4 * size_t{bits}) {
    std::memcpy(block, scales + 2 * g, 2);
    if (head == 4) std::memcpy(block + 2, biases + 2 * g, 2);
    PackBlock(bits, codes + 32 * g, block + head);
  }
}

// Converts packed rows to parts.
inline HWY_ATTR void LoadRows(const UnitStep& step, const ConstStepRows& from, const Parts& to) {
  const quant::TensorFormat& format = step.shape.format;
  const size_t dim = step.shape.dim, parameters = step.groups() * step.scale_bytes();
  for (size_t t = 0; t < step.count; ++t) {
    const std::byte* codes = from.codes + t * from.codes_stride;
    std::byte* scales = to.scales + t * parameters;
    std::byte* biases = to.biases + t * parameters;
    if (format.codec == quant::Codec::kMlxAffine) {
      UnpackCodes(format.bits, codes, dim, to.codes + t * dim);
      std::memcpy(scales, from.scales + t * from.scales_stride, parameters);
      std::memcpy(biases, from.biases + t * from.scales_stride, parameters);
    } else {
      LoadBlocks(step, codes, to.codes + t * dim, scales, biases);
    }
  }
}

inline HWY_ATTR void StoreRows(const UnitStep& step, const ConstParts& from, const StepRows& to) {
  const quant::TensorFormat& format = step.shape.format;
  const size_t dim = step.shape.dim, parameters = step.groups() * step.scale_bytes();
  for (size_t t = 0; t < step.count; ++t) {
    std::byte* codes = to.codes + t * to.codes_stride;
    const std::byte* scales = from.scales + t * parameters;
    const std::byte* biases = from.biases + t * parameters;
    if (format.codec == quant::Codec::kMlxAffine) {
      PackCodes(format.bits, from.codes + t * dim, dim, codes);
      std::memcpy(to.scales + t * to.scales_stride, scales, parameters);
      std::memcpy(to.biases + t * to.scales_stride, biases, parameters);
    } else {
      StoreBlocks(step, from.codes + t * dim, scales, biases, codes);
    }
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
