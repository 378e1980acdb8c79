// Reads and writes eight channels of one token in any format and layout: every group is a multiple
// of eight channels, so they share a scale, and their codes are whole bytes of MLX's bit stream.
//
// Device functions, any thread by itself. Units are 128-byte aligned.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "geometry.h"

namespace prefixd::cuda {

__device__ __forceinline__ float FloatOf(uint8_t dtype, const uint8_t* from) {
  if (dtype == kF32) return *reinterpret_cast<const float*>(from);
  const uint16_t bits = *reinterpret_cast<const uint16_t*>(from);
  if (dtype == kBf16) return __uint_as_float(uint32_t{bits} << 16);
  return __half2float(__ushort_as_half(bits));
}

__device__ __forceinline__ float FloatOfBits(uint8_t dtype, uint32_t bits) {
  if (dtype == kF32) return __uint_as_float(bits);
  if (dtype == kBf16) return __uint_as_float(bits << 16);
  return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}

__device__ __forceinline__ float RoundTo(uint8_t dtype, float x) {
  if (dtype == kF16) return __half2float(__float2half_rn(x));
  if (dtype == kBf16) return __bfloat162float(__float2bfloat16_rn(x));
  return x;
}

template <uint8_t kDtype>
__device__ __forceinline__ float RoundTo(float x) {
  if constexpr (kDtype == kF16) return __half2float(__float2half_rn(x));
  if constexpr (kDtype == kBf16) return __bfloat162float(__float2bfloat16_rn(x));
  return x;
}

__device__ __forceinline__ uint32_t BitsOf(uint8_t dtype, float x) {
  return dtype == kF16 ? __half_as_ushort(__float2half_rn(x))
                       : __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

__device__ __forceinline__ void WidenWords(uint8_t dtype, uint4 v, float (&x)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  if (dtype == kBf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
    x[2 * i] = two.x;
    x[2 * i + 1] = two.y;
  }
}

__device__ __forceinline__ uint4 NarrowWords(uint8_t dtype, const float (&x)[8]) {
  uint32_t words[4];
  if (dtype == kBf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      words[i] = *reinterpret_cast<const uint32_t*>(&two);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 two = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
      words[i] = *reinterpret_cast<const uint32_t*>(&two);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Eight elements that lie side by side, 16-byte aligned or not.
__device__ __forceinline__ void ReadElements(uint8_t dtype, const uint8_t* from, float (&x)[8]) {
  const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
  if (dtype == kF32 && aligned) {
    const float4 a = reinterpret_cast<const float4*>(from)[0];
    const float4 b = reinterpret_cast<const float4*>(from)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else if (dtype == kF32) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = FloatOf(kF32, from + 4 * i);
  } else if (aligned) {
    WidenWords(dtype, *reinterpret_cast<const uint4*>(from), x);
  } else {
    const auto* halves = reinterpret_cast<const uint16_t*>(from);
    WidenWords(dtype,
               make_uint4(halves[0] | halves[1] << 16, halves[2] | halves[3] << 16,
                          halves[4] | halves[5] << 16, halves[6] | halves[7] << 16),
               x);
  }
}

__device__ __forceinline__ void WriteElements(uint8_t dtype, const float (&x)[8], uint8_t* to) {
  const bool aligned = reinterpret_cast<uintptr_t>(to) % 16 == 0;
  if (dtype == kF32 && aligned) {
    reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
  } else if (dtype == kF32) {
#pragma unroll
    for (int i = 0; i < 8; ++i) reinterpret_cast<float*>(to)[i] = x[i];
  } else if (aligned) {
    *reinterpret_cast<uint4*>(to) = NarrowWords(dtype, x);
  } else {
    const uint4 w = NarrowWords(dtype, x);
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
    }
  }
}

// Groups are powers of 2: shifts are a tenth of a division.
__device__ __forceinline__ uint32_t GroupShift(const TensorGeometry& t) {
  return 31 - __clz(static_cast<int>(t.group));
}

// Offset of the word of K that holds a slot's channels [channel, channel + 4 or 8). The words of a
// tile's other slots are beside it.
__device__ __forceinline__ uint32_t TiledKeyWord(const TensorGeometry& t, uint32_t slots,
                                                 uint32_t slot, uint32_t channel) {
  const uint32_t shift = t.bits == 4 ? 3 : 2;  // channels of a word
  const uint32_t first = slot & ~(kTileSlots - 1);
  const uint32_t tile = min(kTileSlots, slots - first);
  return 4 * (first * (t.dim >> shift) + (channel >> shift) * tile + slot % kTileSlots);
}

// Offset of the byte of V that holds a slot's channel; the seven channels behind it, from a
// multiple of eight, follow at distances of 4 bytes.
__device__ __forceinline__ uint32_t TiledValueByte(const TensorGeometry& t, uint32_t slots,
                                                   uint32_t slot, uint32_t channel) {
  const uint32_t run = t.bits == 4 ? 5 : 4, group = GroupShift(t);  // logarithms
  const uint32_t in_group = channel & (t.group - 1u);
  const uint32_t quad = (channel >> group) * (slots / 4) + slot / 4;
  const uint32_t at = (quad << (group - run)) + (in_group >> run);
  return 4 * (at * 16 + in_group % 16) + slot % 4;
}

// Offset among the scales, or the biases, of those of a slot and channel, and how far behind it
// those of the next slot are.
struct ParameterPlace {
  uint32_t offset = 0, stride = 0;
};
__device__ __forceinline__ ParameterPlace ParametersOf(const TensorGeometry& t, const UnitPlaces& p,
                                                       uint32_t slot, uint32_t channel) {
  const uint32_t element = t.dtype == kF32 ? 4 : 2, group = channel >> GroupShift(t);
  if (t.layout == kTiled) return {(group * p.slots + slot) * element, element};
  const uint32_t groups = t.dim >> GroupShift(t);
  return {(slot * groups + group) * element, groups * element};
}
__device__ __forceinline__ uint32_t ParameterOffset(const TensorGeometry& t, const UnitPlaces& p,
                                                    uint32_t slot, uint32_t channel) {
  return ParametersOf(t, p, slot, channel).offset;
}

__device__ __forceinline__ uint32_t GgmlBlockBytes(uint8_t codec) {
  return codec == kQ8_0 ? 34 : codec == kQ4_0 ? 18 : codec == kQ4_1 ? 20 : codec == kQ5_0 ? 22 : 24;
}

// The codes as numbers, before scales: signed for q8_0, less 8 for q4_0, less 16 for q5_0.
struct OctetParameters {
  float scale = 1, bias = 0;
  bool has_bias = false;
};

__device__ __forceinline__ void ReadTiledCodes(const TensorGeometry& t, const UnitPlaces& p,
                                               const uint8_t* unit, uint32_t slot, uint32_t channel,
                                               uint32_t (&code)[8]) {
  if (t.value != 0) {
    // A word has the bytes of four slots.
    const auto* words = reinterpret_cast<const uint4*>(
        unit + TiledValueByte(t, p.slots, slot / kQuad * kQuad, channel));
    const uint4 low = words[0], high = words[1];
    const uint32_t shift = slot % kQuad * 8 + (t.bits == 4 && channel % 32 >= 16 ? 4 : 0);
    const uint32_t mask = t.bits == 4 ? 15 : 255;
    const uint32_t word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = word[i] >> shift & mask;
  } else if (t.bits == 4) {
    const uint32_t word =
        *reinterpret_cast<const uint32_t*>(unit + TiledKeyWord(t, p.slots, slot, channel));
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = word >> (i % 4 * 8 + i / 4 * 4) & 15;
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = *reinterpret_cast<const uint32_t*>(
          unit + TiledKeyWord(t, p.slots, slot, channel + 4 * half));
#pragma unroll
      for (int i = 0; i < 4; ++i) code[4 * half + i] = word >> (8 * i) & 255;
    }
  }
}

// Eight codes of MLX's bit stream: kBits bytes, aligned to their largest power of 2.
template <uint32_t kBits>
__device__ __forceinline__ void ReadStreamCodes(const uint8_t* from, uint32_t (&code)[8]) {
  uint64_t bits = 0;
  if constexpr (kBits == 8) {
    bits = *reinterpret_cast<const uint64_t*>(from);
  } else if constexpr (kBits == 4) {
    bits = *reinterpret_cast<const uint32_t*>(from);
  } else if constexpr (kBits % 2 == 0) {
#pragma unroll
    for (uint32_t i = 0; i < kBits / 2; ++i) {
      bits |= uint64_t{reinterpret_cast<const uint16_t*>(from)[i]} << (16 * i);
    }
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kBits; ++i) bits |= uint64_t{from[i]} << (8 * i);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    code[i] = static_cast<uint32_t>(bits >> (i * kBits)) & ((1u << kBits) - 1);
  }
}
__device__ __forceinline__ void ReadStreamCodes(uint32_t bits, const uint8_t* from,
                                                uint32_t (&code)[8]) {
  switch (bits) {
    case 2:
      return ReadStreamCodes<2>(from, code);
    case 3:
      return ReadStreamCodes<3>(from, code);
    case 4:
      return ReadStreamCodes<4>(from, code);
    case 5:
      return ReadStreamCodes<5>(from, code);
    case 6:
      return ReadStreamCodes<6>(from, code);
    default:
      return ReadStreamCodes<8>(from, code);
  }
}

__device__ __forceinline__ OctetParameters ReadBlockCodes(const TensorGeometry& t,
                                                          const uint8_t* block, uint32_t in_block,
                                                          uint32_t (&code)[8]) {
  OctetParameters q;
  q.scale = FloatOf(kF16, block);
  q.has_bias = t.codec == kQ4_1 || t.codec == kQ5_1;
  if (q.has_bias) q.bias = FloatOf(kF16, block + 2);
  const uint8_t* codes = block + (q.has_bias ? 4 : 2);
  if (t.codec == kQ8_0) {
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = codes[in_block + i];
    return q;
  }
  uint32_t fifth = 0;
  if (t.codec == kQ5_0 || t.codec == kQ5_1) {
    for (int i = 0; i < 4; ++i) fifth |= uint32_t{codes[i]} << (8 * i);
    codes += 4;
  }
  const uint32_t shift = in_block >= 16 ? 4 : 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    code[i] = (codes[in_block % 16 + i] >> shift & 15) | (fifth >> (in_block + i) & 1) << 4;
  }
  return q;
}

// kAsStored: rounds MLX's values twice in the format's dtype, as its CPU does. Else they are
// code * scale + bias in float, as attention takes them.
template <bool kAsStored>
__device__ __forceinline__ void ReadOctet(const TensorGeometry& t, const UnitPlaces& p,
                                          const uint8_t* unit, uint32_t slot, uint32_t channel,
                                          float (&x)[8]) {
  if (t.codec == kRaw) {
    const uint32_t element = t.dtype == kF32 ? 4 : 2;
    if (t.layout == kTransposed) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[i] = FloatOf(t.dtype, unit + ((channel + i) * p.slots + slot) * element);
      }
    } else {
      ReadElements(t.dtype, unit + (slot * t.dim + channel) * element, x);
    }
    return;
  }
  uint32_t code[8];
  OctetParameters q;
  if (t.codec == kMlxAffine || t.layout == kTiled) {
    if (t.layout == kTiled) {
      ReadTiledCodes(t, p, unit, slot, channel, code);
    } else {
      ReadStreamCodes(t.bits, unit + slot * t.row_codes + channel / 8 * t.bits, code);
    }
    const uint32_t at = ParameterOffset(t, p, slot, channel);
    q.scale = FloatOf(t.dtype, unit + p.scales + at);
    q.has_bias = t.row_biases != 0;
    if (q.has_bias) q.bias = FloatOf(t.dtype, unit + p.biases + at);
  } else {
    const uint8_t* block = unit + slot * t.row_codes + channel / 32 * GgmlBlockBytes(t.codec);
    q = ReadBlockCodes(t, block, channel % 32, code);
  }
  const int middle = t.codec == kQ4_0 ? 8 : t.codec == kQ5_0 ? 16 : 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int number =
        t.codec == kQ8_0 ? static_cast<int8_t>(code[i]) : static_cast<int>(code[i]) - middle;
    const float product = __fmul_rn(static_cast<float>(number), q.scale);
    if (kAsStored && t.codec == kMlxAffine) {
      x[i] = RoundTo(t.dtype, __fadd_rn(RoundTo(t.dtype, product), q.bias));
    } else {
      x[i] = q.has_bias ? __fadd_rn(product, q.bias) : product;
    }
  }
}

// Elements before a channel of a head.
__device__ __forceinline__ int64_t ChannelOffset(const TensorPlace& place, uint32_t channel) {
  if (channel < place.split) return channel;
  return channel / place.split * place.split_stride + channel % place.split;
}

// The number of a token's element in an engine's tensor. at: its head's and channel's offset;
// table: blocks of the sequence, for a place that has blocks.
__device__ __forceinline__ int64_t ElementOf(const TensorPlace& place, const int32_t* table,
                                             int64_t at, uint32_t token) {
  if (place.block_tokens == 0) return at + token * place.token_stride;
  const uint32_t block = token / place.block_tokens;
  return at + table[block] * place.block_stride +
         (token - block * place.block_tokens) * place.token_stride;
}

// Eight channels of one head of an engine's tensor; the elements of a token are then one addition
// away.
class HeadOfTensor {
 public:
  // table: blocks of the sequence, for a place that has blocks.
  __device__ __forceinline__ HeadOfTensor(const TensorPlace& place, const int32_t* table,
                                          uint32_t head, uint32_t channel)
      : place_(place), table_(table), dtype_(static_cast<uint8_t>(place.dtype)), channel_(channel) {
    element_ = ElementBytes(dtype_);
    at_ = head * place.head_stride + Offset(channel);
  }

  // Four tokens from `token`, those that are there.
  __device__ __forceinline__ void ReadFour(uint32_t token, const bool (&there)[4],
                                           float (&x)[4][8]) const {
    if (!HalvesSideBySide()) {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        if (there[j]) Read(token + j, x[j]);
      }
      return;
    }
    uint4 words[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      words[j] = make_uint4(0, 0, 0, 0);
      if (there[j]) words[j] = *reinterpret_cast<const uint4*>(At(token + j));
    }
    if (dtype_ == kBf16) {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) WidenWords(kBf16, words[j], x[j]);
    } else {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) WidenWords(kF16, words[j], x[j]);
    }
  }
  __device__ __forceinline__ void Read(uint32_t token, float (&x)[8]) const {
    const uint8_t* from = At(token);
    if (dtype_ == kF8) return ReadF8(from, x);
    if (place_.split % 8 == 0) return ReadElements(dtype_, from, x);
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      x[i] = FloatOf(dtype_, from + (Offset(channel_ + i) - Offset(channel_)) * element_);
    }
  }
  __device__ __forceinline__ void Write(uint32_t token, const float (&x)[8]) const {
    uint8_t* to = At(token);
    if (dtype_ == kF8) return WriteF8(x, to);
    if (place_.split % 8 == 0) return WriteElements(dtype_, x, to);
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      uint8_t* element = to + (Offset(channel_ + i) - Offset(channel_)) * element_;
      if (dtype_ == kF32) {
        *reinterpret_cast<float*>(element) = x[i];
      } else {
        *reinterpret_cast<uint16_t*>(element) = static_cast<uint16_t>(BitsOf(dtype_, x[i]));
      }
    }
  }

 private:
  __device__ __forceinline__ void ReadF8(const uint8_t* from, float (&x)[8]) const {
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const uint8_t element = from[Offset(channel_ + i) - Offset(channel_)];
      const __half_raw half = __nv_cvt_fp8_to_halfraw(element, __NV_E4M3);
      x[i] = __fmul_rn(__half2float(__half(half)), place_.scale);
    }
  }
  __device__ __forceinline__ void WriteF8(const float (&x)[8], uint8_t* to) const {
    uint64_t elements = 0;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const float scaled = place_.scale == 1 ? x[i] : __fdiv_rn(x[i], place_.scale);
      elements |= uint64_t{__nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3)} << 8 * i;
    }
    if (place_.split % 8 == 0 && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
      *reinterpret_cast<uint64_t*>(to) = elements;
      return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      to[Offset(channel_ + i) - Offset(channel_)] = static_cast<uint8_t>(elements >> 8 * i);
    }
  }
  // Whether any token's eight channels are 16 aligned bytes.
  __device__ __forceinline__ bool HalvesSideBySide() const {
    const auto base = reinterpret_cast<uintptr_t>(place_.data) + static_cast<uintptr_t>(2 * at_);
    return element_ == 2 && place_.split % 8 == 0 && base % 16 == 0 &&
           ((place_.token_stride | place_.block_stride) & 7) == 0;
  }
  __device__ __forceinline__ int64_t Offset(uint32_t channel) const {
    return ChannelOffset(place_, channel);
  }
  __device__ __forceinline__ uint8_t* At(uint32_t token) const {
    return static_cast<uint8_t*>(place_.data) + ElementOf(place_, table_, at_, token) * element_;
  }

  const TensorPlace& place_;
  const int32_t* const table_;
  const uint8_t dtype_;
  const uint32_t channel_;
  int64_t at_ = 0;
  uint32_t element_ = 2;
};

}  // namespace prefixd::cuda
