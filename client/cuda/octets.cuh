// Reads and writes eight channels of one token in any format and layout: every group is a multiple
// of eight channels, so they share a scale, and their codes are whole bytes of MLX's bit stream.
//
// Device functions, any thread by itself. Units are 128-byte aligned.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "geometry.h"

namespace prefixd::cuda {

__device__ __forceinline__ float FloatOf(uint8_t dtype, const uint8_t* from) {
  if (dtype == kF32) return *reinterpret_cast<const float*>(from);
  const uint16_t bits = *reinterpret_cast<const uint16_t*>(from);
  if (dtype == kBf16) return __uint_as_float(uint32_t{bits} << 16);
  return __half2float(__ushort_as_half(bits));
}

__device__ __forceinline__ float RoundTo(uint8_t dtype, float x) {
  if (dtype == kF16) return __half2float(__float2half_rn(x));
  if (dtype == kBf16) return __bfloat162float(__float2bfloat16_rn(x));
  return x;
}

__device__ __forceinline__ uint32_t BitsOf(uint8_t dtype, float x) {
  return dtype == kF16 ? __half_as_ushort(__float2half_rn(x))
                       : __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// Eight elements that lie side by side, aligned to 8 elements or not.
__device__ __forceinline__ void ReadElements(uint8_t dtype, const uint8_t* from, float (&x)[8]) {
  if (dtype == kF32) {
    if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
      const float4 a = reinterpret_cast<const float4*>(from)[0];
      const float4 b = reinterpret_cast<const float4*>(from)[1];
      x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z,
      x[7] = b.w;
      return;
    }
    for (int i = 0; i < 8; ++i) x[i] = FloatOf(kF32, from + 4 * i);
    return;
  }
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    for (int i = 0; i < 8; ++i) x[i] = FloatOf(dtype, from + 2 * i);
    return;
  }
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (dtype == kBf16) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
    } else {
      x[2 * i] = __half2float(__ushort_as_half(static_cast<uint16_t>(words[i])));
      x[2 * i + 1] = __half2float(__ushort_as_half(static_cast<uint16_t>(words[i] >> 16)));
    }
  }
}

__device__ __forceinline__ void WriteElements(uint8_t dtype, const float (&x)[8], uint8_t* to) {
  if (dtype == kF32) {
    if (reinterpret_cast<uintptr_t>(to) % 16 == 0) {
      reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
      reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
      return;
    }
    for (int i = 0; i < 8; ++i) reinterpret_cast<float*>(to)[i] = x[i];
    return;
  }
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    words[i] = BitsOf(dtype, x[2 * i]) | BitsOf(dtype, x[2 * i + 1]) << 16;
  if (reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
  }
}

// Offset of the word of K that holds a slot's channels [channel, channel + 4 or 8).
__device__ __forceinline__ uint32_t TiledKeyWord(const TensorGeometry& t, uint32_t slots,
                                                 uint32_t slot, uint32_t channel) {
  const uint32_t a_word = t.bits == 4 ? 8 : 4;
  const uint32_t first = slot / kTileSlots * kTileSlots;
  const uint32_t tile = min(kTileSlots, slots - first);
  return 4 * (first * (t.dim / a_word) + channel / a_word * tile + slot % kTileSlots);
}

// Offset of the byte of V that holds a slot's channel; the seven channels behind it, from a
// multiple of eight, follow at distances of 4 bytes.
__device__ __forceinline__ uint32_t TiledValueByte(const TensorGeometry& t, uint32_t slots,
                                                   uint32_t slot, uint32_t channel) {
  const uint32_t run = t.bits == 4 ? 32 : 16;
  const uint32_t runs = t.group / run;
  const uint32_t in_group = channel % t.group;
  const uint32_t at = (channel / t.group * (slots / 4) + slot / 4) * runs + in_group / run;
  return 4 * (at * 16 + in_group % 16) + slot % 4;
}

__device__ __forceinline__ uint32_t ParameterOffset(const TensorGeometry& t, const UnitPlaces& p,
                                                    uint32_t slot, uint32_t channel) {
  const uint32_t group = channel / t.group;
  const uint32_t index =
      t.layout == kTiled ? group * p.slots + slot : slot * (t.dim / t.group) + group;
  return index * (t.dtype == kF32 ? 4 : 2);
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
    const uint8_t* at = unit + TiledValueByte(t, p.slots, slot, channel);
    const uint32_t shift = t.bits == 4 && channel % 32 >= 16 ? 4 : 0;
    const uint32_t mask = t.bits == 4 ? 15 : 255;
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = at[4 * i] >> shift & mask;
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

// The address of (token, head, channel); the channels up to the next multiple of `split` follow it.
// table: blocks of the sequence, for a place that has blocks.
__device__ __forceinline__ int64_t ElementOf(const TensorPlace& place, const int32_t* table,
                                             uint32_t token, uint32_t head, uint32_t channel) {
  int64_t at =
      head * place.head_stride + channel / place.split * place.split_stride + channel % place.split;
  if (place.block_tokens == 0) return at + token * place.token_stride;
  return at + table[token / place.block_tokens] * place.block_stride +
         token % place.block_tokens * place.token_stride;
}

__device__ __forceinline__ void ReadTensor(const TensorPlace& place, const int32_t* table,
                                           uint32_t token, uint32_t head, uint32_t channel,
                                           float (&x)[8]) {
  const uint32_t element = place.dtype == kF32 ? 4 : 2;
  const auto* data = static_cast<const uint8_t*>(place.data);
  if (place.split % 8 == 0) {
    ReadElements(place.dtype, data + ElementOf(place, table, token, head, channel) * element, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] = FloatOf(place.dtype, data + ElementOf(place, table, token, head, channel + i) * element);
  }
}

__device__ __forceinline__ void WriteTensor(const TensorPlace& place, const int32_t* table,
                                            uint32_t token, uint32_t head, uint32_t channel,
                                            const float (&x)[8]) {
  const uint32_t element = place.dtype == kF32 ? 4 : 2;
  auto* data = static_cast<uint8_t*>(place.data);
  if (place.split % 8 == 0) {
    WriteElements(place.dtype, x, data + ElementOf(place, table, token, head, channel) * element);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    uint8_t* to = data + ElementOf(place, table, token, head, channel + i) * element;
    if (place.dtype == kF32) {
      *reinterpret_cast<float*>(to) = x[i];
    } else {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(BitsOf(place.dtype, x[i]));
    }
  }
}

}  // namespace prefixd::cuda
