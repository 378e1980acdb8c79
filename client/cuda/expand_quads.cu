// Expands quads of tokens into halves that lie side by side: what engines have. The values are
// those of copy.cu, by fewer instructions, which limit it: scales in halves are applied to two
// halves at a time, as the CPU rounds them, and codes are read in words.
//
// A block of threads takes one part of one head; a thread has eight channels of eight tokens.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels.h"
#include "octets.cuh"
#include "quads.cuh"

namespace prefixd::cuda {
namespace {

constexpr uint32_t kTokens = 8;         // of a thread
constexpr uint32_t kMostThreads = 256;  // most blocks have half as many
static_assert(BlocksFit(32, kTokens, kMostThreads));

// A thread's codes of one token. Rows of MLX's stream of up to 4 bits: the stream's bits in
// word[0]. Else a byte a channel.
struct TokenCodes {
  uint32_t word[2] = {0, 0};
};

template <uint8_t kCodec, uint32_t kBits, Codes kCodes>
constexpr bool kIsStream = (kCodec == kMlxAffine) && (kCodes == Codes::kRows) && (kBits < 8);

// --- reading codes ---

// Eight bytes from an even offset of a row, which begins at a multiple of 4: of the two or three
// words that they lie in.
__device__ __forceinline__ TokenCodes EightBytes(const uint8_t* row, uint32_t at) {
  const auto* words = reinterpret_cast<const uint32_t*>(row + (at & ~3u));
  const uint32_t shift = 8 * at;  // of which the lowest five bits count
  const uint32_t second = words[1], third = words[1 + (at >> 1 & 1)];
  return {{__funnelshift_r(words[0], second, shift), __funnelshift_r(second, third, shift)}};
}

// Four lanes' 24 bits each, of three words that the first three have.
__device__ __forceinline__ uint32_t BitsOfThree(uint32_t word, uint32_t lane) {
  const uint32_t before = __shfl_up_sync(~0u, word, 1, 4);  // the first lane's own
  return __funnelshift_r(before, word, (32 - 8 * lane) % 32);
}

template <uint8_t kCodec, uint32_t kBits>
__device__ __forceinline__ TokenCodes ReadRow(const uint8_t* row, uint32_t channel) {
  TokenCodes codes;
  if constexpr (kCodec != kMlxAffine) {
    codes = EightBytes(
        row, channel / 32 * GgmlBlockBytes(kCodec) + 2 + channel % (kBits == 8 ? 32 : 16));
  } else if constexpr (kBits == 8) {
    const uint2 two = *reinterpret_cast<const uint2*>(row + channel);
    codes = {{two.x, two.y}};
  } else if constexpr (kBits == 4) {
    codes.word[0] = *reinterpret_cast<const uint32_t*>(row + channel / 2);
  } else if constexpr (kBits == 3) {
    const uint32_t lane = channel / 8 % 4;
    if (lane == 3) return codes;
    codes.word[0] = *reinterpret_cast<const uint32_t*>(row + channel / 32 * 12 + 4 * lane);
  } else {
    codes.word[0] = *reinterpret_cast<const uint16_t*>(row + channel / 4);
  }
  return codes;
}

// A quad's words as they lie.
template <uint32_t kBits, Codes kCodes>
__device__ __forceinline__ void ReadTiles(const TensorGeometry& t, uint32_t slots,
                                          const uint8_t* unit, uint32_t slot, uint32_t channel,
                                          TokenCodes (&codes)[kQuad]) {
  uint4 two[2] = {};
  if constexpr (kCodes == Codes::kTiledKeys) {
    uint32_t tile;
    const uint32_t at = TileOffsets<kBits>::Key(t, slots, slot, channel, tile);
    two[0] = *reinterpret_cast<const uint4*>(unit + at);
    if (kBits == 8) two[1] = *reinterpret_cast<const uint4*>(unit + at + 4 * tile);
  } else {
    const auto* from = reinterpret_cast<const uint4*>(unit + TiledValueByte(t, slots, 0, channel) +
                                                      slot / 4 * TileOffsets<kBits>::ValueStep(t));
    two[0] = from[0];
    two[1] = from[1];
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    codes[0].word[half] = two[half].x;
    codes[1].word[half] = two[half].y;
    codes[2].word[half] = two[half].z;
    codes[3].word[half] = two[half].w;
  }
}

// Makes bytes of a quad's words.
template <uint8_t kCodec, uint32_t kBits, Codes kCodes>
__device__ __forceinline__ void ToBytes(uint32_t channel, TokenCodes (&codes)[kQuad]) {
  if constexpr (kCodes == Codes::kTiledValues) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 bytes = Transposed(codes[0].word[half], codes[1].word[half], codes[2].word[half],
                                     codes[3].word[half]);
      codes[0].word[half] = bytes.x;
      codes[1].word[half] = bytes.y;
      codes[2].word[half] = bytes.z;
      codes[3].word[half] = bytes.w;
    }
  }
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
    uint32_t(&word)[2] = codes[j].word;
    if constexpr (kBits == 4 && kCodes == Codes::kTiledKeys) {
      word[1] = word[0] >> 4 & 0x0F0F0F0Fu;
      word[0] &= 0x0F0F0F0Fu;
    } else if constexpr (kBits == 4) {  // the channels 16 further are in the high nibbles
      const uint32_t shift = channel % 32 >= 16 ? 4 : 0;
      word[0] = word[0] >> shift & 0x0F0F0F0Fu;
      word[1] = word[1] >> shift & 0x0F0F0F0Fu;
    }
    if constexpr (kCodec == kQ8_0) {  // 128 more than the number
      word[0] ^= 0x80808080u;
      word[1] ^= 0x80808080u;
    }
  }
}

// --- values ---

// A stream's codes k and k + 4 as two halves of 1024 more.
template <uint32_t kBits>
__device__ __forceinline__ void StreamPairs(uint32_t bits, __half2 (&pairs)[4]) {
  constexpr uint32_t kHalf = (1u << (4 * kBits)) - 1;  // of the stream's bits
  const uint32_t apart =
      kBits == 4 ? bits : (bits & kHalf) | (bits & kHalf << (4 * kBits)) << (16 - 4 * kBits);
  constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x10001u;
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) {
    const uint32_t two = (apart >> (k * kBits) & kMask) | 0x64006400u;
    pairs[k] = *reinterpret_cast<const __half2*>(&two);
  }
}

// Codes 2k and 2k + 1.
__device__ __forceinline__ void BytePairs(const TokenCodes& codes, __half2 (&pairs)[4]) {
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) {
    const uint32_t two = __byte_perm(codes.word[k / 2], 0x64646464u, k % 2 == 0 ? 0x4140 : 0x4342);
    pairs[k] = *reinterpret_cast<const __half2*>(&two);
  }
}

template <uint8_t kTo>
__device__ __forceinline__ uint32_t Narrowed(float a, float b) {
  if constexpr (kTo == kBf16) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&two);
  } else {
    const __half2 two = __floats2half2_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&two);
  }
}

// Two halves as two elements.
template <uint8_t kTo>
__device__ __forceinline__ uint32_t Elements(__half a, __half b) {
  if constexpr (kTo == kBf16) return Narrowed<kTo>(__half2float(a), __half2float(b));
  const __half2 two = __halves2half2(a, b);
  return *reinterpret_cast<const uint32_t*>(&two);
}

// MLX's values with scales in f16: half arithmetic rounds as float arithmetic and a rounding do,
// since a product of two halves, and a sum as far as a half sees it, is exact in a float.
template <uint8_t kTo, uint8_t kCodec, uint32_t kBits, Codes kCodes>
__device__ __forceinline__ uint4 HalfValues(const TokenCodes& codes, uint32_t scale_and_bias) {
  const auto halves = *reinterpret_cast<const __half2*>(&scale_and_bias);
  const __half2 scale = __low2half2(halves), bias = __high2half2(halves);
  const __half2 base = __float2half2_rn(1024);
  constexpr bool kStream = kIsStream<kCodec, kBits, kCodes>;
  __half2 x[4];
  if constexpr (kStream) {
    StreamPairs<kBits>(codes.word[0], x);
  } else {
    BytePairs(codes, x);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) x[k] = __hadd2_rn(__hmul2_rn(__hsub2_rn(x[k], base), scale), bias);
  if constexpr (kStream) {
    return make_uint4(Elements<kTo>(__low2half(x[0]), __low2half(x[1])),
                      Elements<kTo>(__low2half(x[2]), __low2half(x[3])),
                      Elements<kTo>(__high2half(x[0]), __high2half(x[1])),
                      Elements<kTo>(__high2half(x[2]), __high2half(x[3])));
  }
  return make_uint4(Elements<kTo>(__low2half(x[0]), __high2half(x[0])),
                    Elements<kTo>(__low2half(x[1]), __high2half(x[1])),
                    Elements<kTo>(__low2half(x[2]), __high2half(x[2])),
                    Elements<kTo>(__low2half(x[3]), __high2half(x[3])));
}

// Code i as a float of 2^23 more.
template <uint8_t kCodec, uint32_t kBits, Codes kCodes>
__device__ __forceinline__ float Lifted(const TokenCodes& codes, uint32_t i) {
  if constexpr (kIsStream<kCodec, kBits, kCodes>) {
    return __uint_as_float((codes.word[0] >> (i * kBits) & ((1u << kBits) - 1)) | 0x4B000000u);
  }
  return __uint_as_float(__byte_perm(codes.word[i / 4], 0x4B000000u, 0x7650 + i % 4));
}

// Others: MLX's with scales in bf16, and ggml's, whose scales are f16.
template <uint8_t kTo, uint8_t kCodec, uint32_t kBits, Codes kCodes>
__device__ __forceinline__ uint4 FloatValues(const TokenCodes& codes, uint32_t scale_and_bias) {
  constexpr float kMiddle = kCodec == kQ8_0 ? 128 : kCodec == kQ4_0 ? 8 : 0;
  const float scale = FloatOfBits(kCodec == kMlxAffine ? kBf16 : kF16, scale_and_bias & 0xFFFF);
  float x[8];
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const float number = __fsub_rn(Lifted<kCodec, kBits, kCodes>(codes, i), 8388608.f + kMiddle);
    x[i] = __fmul_rn(number, scale);
  }
  if constexpr (kCodec == kMlxAffine) {
    const float bias = __uint_as_float(scale_and_bias & 0xFFFF0000u);
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) x[i] = RoundTo<kBf16>(__fadd_rn(RoundTo<kBf16>(x[i]), bias));
  }
  return make_uint4(Narrowed<kTo>(x[0], x[1]), Narrowed<kTo>(x[2], x[3]), Narrowed<kTo>(x[4], x[5]),
                    Narrowed<kTo>(x[6], x[7]));
}

// --- the kernel ---

// The scale, and the bias above it, of a token's group.
template <uint8_t kCodec, Codes kCodes>
__device__ __forceinline__ uint32_t ReadParameters(const TensorGeometry& t, const UnitPlaces& p,
                                                   const uint8_t* unit, uint32_t slot,
                                                   uint32_t channel) {
  if constexpr (kCodec != kMlxAffine && kCodes == Codes::kRows) {
    return *reinterpret_cast<const uint16_t*>(unit + slot * t.row_codes +
                                              channel / 32 * GgmlBlockBytes(kCodec));
  }
  const uint32_t at = ParameterOffset(t, p, slot, channel);
  const uint32_t scale = *reinterpret_cast<const uint16_t*>(unit + p.scales + at);
  if (kCodec != kMlxAffine) return scale;
  return scale | *reinterpret_cast<const uint16_t*>(unit + p.biases + at) << 16;
}

// Writes the tokens of a quad that are in [first, end); `token` is the quad's first.
__device__ __forceinline__ void WriteQuad(const TensorPlace& place, const int32_t* table,
                                          int64_t head, uint32_t token,
                                          const uint4 (&values)[kQuad], uint32_t slot,
                                          uint32_t first, uint32_t end) {
  const bool together =
      place.block_tokens == 0 || token % place.block_tokens + kQuad <= place.block_tokens;
  if (together && slot >= first && slot + kQuad <= end) {
    uint8_t* row = RowOf(place, table, head, token);
#pragma unroll
    for (uint32_t j = 0; j < kQuad; ++j) {
      *reinterpret_cast<uint4*>(row + 2 * j * place.token_stride) = values[j];
    }
    return;
  }
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
    if (slot + j < first || slot + j >= end) continue;
    *reinterpret_cast<uint4*>(RowOf(place, table, head, token + j)) = values[j];
  }
}

// block: (octets of a row, tokens / kTokens); grid: (part, kv head, K or V). formats: as of
// QueueExpandQuads().
template <uint8_t kTo, uint8_t kCodec, uint32_t kBits, Codes kCodes, uint8_t kParameters>
__global__ void __launch_bounds__(kMostThreads, 5)
    ExpandQuadsKernel(const __grid_constant__ ExpandArguments a, uint32_t formats) {
  const BlockPart part = a.parts[blockIdx.x];
  const bool value = blockIdx.z != 0 || formats % (1u << kMostFormats) == 0;
  if ((formats >> (part.format + (value ? kMostFormats : 0)) & 1) == 0) return;
  const TensorGeometry& t = value ? a.formats[part.format].value : a.formats[part.format].key;
  const UnitPlaces key = PlacesOf(a.formats[part.format].key, part.page_tokens);
  const UnitPlaces places = value ? PlacesOf(t, part.page_tokens) : key;
  const uint8_t* unit =
      part.units + (value ? size_t{a.kv_heads} * key.bytes : 0) + size_t{blockIdx.y} * places.bytes;
  const TensorPlace& to = value ? a.value : a.key;
  const uint32_t channel = threadIdx.x * kOctet;
  const uint32_t lane = (threadIdx.x + threadIdx.y * blockDim.x) % 32;
  const int64_t head = HeadOffset(to, blockIdx.y, channel);
  const uint32_t end = part.first_slot + part.count;
  for (uint32_t begin = part.first_slot / kQuad * kQuad; begin < end;
       begin += blockDim.y * kTokens) {
    TokenCodes codes[kTokens / kQuad][kQuad] = {};
    uint32_t own[kTokens / kQuad] = {};  // parameters of the quad's token lane % kQuad
#pragma unroll
    for (uint32_t q = 0; q < kTokens / kQuad; ++q) {
      const uint32_t slot = begin + threadIdx.y * kTokens + q * kQuad;
      if (slot >= end) continue;
      own[q] = ReadParameters<kCodec, kCodes>(t, places, unit, slot + lane % kQuad, channel);
      if constexpr (kCodes == Codes::kRows) {
#pragma unroll
        for (uint32_t j = 0; j < kQuad; ++j) {
          codes[q][j] = ReadRow<kCodec, kBits>(unit + (slot + j) * t.row_codes, channel);
        }
      } else {
        ReadTiles<kBits, kCodes>(t, places.slots, unit, slot, channel, codes[q]);
      }
    }
#pragma unroll
    for (uint32_t q = 0; q < kTokens / kQuad; ++q) {
      const uint32_t slot = begin + threadIdx.y * kTokens + q * kQuad;
      if constexpr (kBits == 3) {
#pragma unroll
        for (TokenCodes& it : codes[q]) it.word[0] = BitsOfThree(it.word[0], channel / 8 % 4);
      }
      if constexpr (!kIsStream<kCodec, kBits, kCodes>) {
        ToBytes<kCodec, kBits, kCodes>(channel, codes[q]);
      }
      uint4 values[kQuad];
#pragma unroll
      for (uint32_t j = 0; j < kQuad; ++j) {
        const uint32_t parameters = __shfl_sync(~0u, own[q], lane / kQuad * kQuad + j);
        if constexpr (kParameters == kF16 && kCodec == kMlxAffine) {
          values[j] = HalfValues<kTo, kCodec, kBits, kCodes>(codes[q][j], parameters);
        } else {
          values[j] = FloatValues<kTo, kCodec, kBits, kCodes>(codes[q][j], parameters);
        }
      }
      if (slot < end) {
        WriteQuad(to, a.table, head, part.token + slot - part.first_slot, values, slot,
                  part.first_slot, end);
      }
    }
  }
}

template <uint8_t kTo, uint8_t kCodec, uint32_t kBits, Codes kCodes, uint8_t kParameters>
cudaError_t Launch(const ExpandArguments& a, const TensorGeometry& t, uint32_t formats,
                   cudaStream_t stream) {
  const dim3 block(t.dim / kOctet, RowsOfBlock(t.dim, kTokens, kElementsOfBlock));
  const bool keys = formats % (1u << kMostFormats) != 0, values = formats >> kMostFormats != 0;
  ExpandQuadsKernel<kTo, kCodec, kBits, kCodes, kParameters>
      <<<dim3(a.part_count, a.kv_heads, keys && values ? 2 : 1), block, 0, stream>>>(a, formats);
  return cudaGetLastError();
}

template <uint8_t kTo, uint8_t kCodec, uint32_t kBits, uint8_t kParameters>
cudaError_t InLayout(const ExpandArguments& a, const TensorGeometry& t, uint32_t formats,
                     cudaStream_t stream) {
  if constexpr (kBits == 4 || kBits == 8) {
    if (t.layout == kTiled && t.value != 0) {
      return Launch<kTo, kCodec, kBits, Codes::kTiledValues, kParameters>(a, t, formats, stream);
    }
    if (t.layout == kTiled) {
      return Launch<kTo, kCodec, kBits, Codes::kTiledKeys, kParameters>(a, t, formats, stream);
    }
  }
  return Launch<kTo, kCodec, kBits, Codes::kRows, kParameters>(a, t, formats, stream);
}

template <uint8_t kTo, uint32_t kBits>
cudaError_t Affine(const ExpandArguments& a, const TensorGeometry& t, uint32_t formats,
                   cudaStream_t stream) {
  if (t.dtype == kF16) return InLayout<kTo, kMlxAffine, kBits, kF16>(a, t, formats, stream);
  return InLayout<kTo, kMlxAffine, kBits, kBf16>(a, t, formats, stream);
}

template <uint8_t kTo>
cudaError_t InFormat(const ExpandArguments& a, const TensorGeometry& t, uint32_t formats,
                     cudaStream_t stream) {
  switch (t.codec == kMlxAffine ? t.bits : 100 + t.codec) {
    case 2:
      return Affine<kTo, 2>(a, t, formats, stream);
    case 3:
      return Affine<kTo, 3>(a, t, formats, stream);
    case 4:
      return Affine<kTo, 4>(a, t, formats, stream);
    case 8:
      return Affine<kTo, 8>(a, t, formats, stream);
    case 100 + kQ8_0:
      return InLayout<kTo, kQ8_0, 8, kF16>(a, t, formats, stream);
    default:
      return InLayout<kTo, kQ4_0, 4, kF16>(a, t, formats, stream);
  }
}

}  // namespace

bool ExpandsQuads(const TensorGeometry& t, const TensorPlace& to) {
  const bool affine = t.codec == kMlxAffine && (t.bits <= 4 || t.bits == 8);
  const bool known = affine || t.codec == kQ8_0 || t.codec == kQ4_0;
  const bool words = affine || t.layout == kTiled || t.row_codes % 4 == 0;
  return known && words && (t.dtype == kF16 || t.dtype == kBf16) && t.dim <= kMaxDim &&
         HasAlignedHalves(to);
}

cudaError_t QueueExpandQuads(const ExpandArguments& a, const TensorGeometry& t, uint32_t formats,
                             cudaStream_t stream) {
  const uint32_t to = t.value != 0 ? a.value.dtype : a.key.dtype;
  return to == kF16 ? InFormat<kF16>(a, t, formats, stream)
                    : InFormat<kBf16>(a, t, formats, stream);
}

}  // namespace prefixd::cuda
