// Gather: scattered pages into device memory, 16 bytes a thread. Expand: units into an engine's
// tensors.
#include <algorithm>

#include "kernels.h"
#include "octets.cuh"

namespace prefixd::cuda {
namespace {

constexpr uint32_t kThreads = 256;
// PCIe is busy from 16 blocks on; the others are the engine's.
constexpr uint32_t kMostGatherBlocks = 48;
constexpr uint32_t kInFlight = 4;  // loads of a thread

__global__ void __launch_bounds__(kThreads) GatherKernel(const Piece* pieces, uint32_t count) {
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const Piece piece = pieces[i];
    const auto* from = static_cast<const uint4*>(piece.from);
    auto* to = static_cast<uint4*>(piece.to);
    const uint32_t words = piece.bytes / sizeof(uint4);
    for (uint32_t at = threadIdx.x; at < words; at += kThreads * kInFlight) {
      uint4 word[kInFlight];
#pragma unroll
      for (uint32_t k = 0; k < kInFlight; ++k) {
        if (at + k * kThreads < words) word[k] = __ldcs(from + at + k * kThreads);
      }
#pragma unroll
      for (uint32_t k = 0; k < kInFlight; ++k) {
        if (at + k * kThreads < words) to[at + k * kThreads] = word[k];
      }
    }
  }
}

constexpr uint32_t kQuad = 4;  // tokens of a thread

// An integer below 2^23 as a float, without the slow conversion.
__device__ float Number(uint32_t code) {
  return __fsub_rn(__uint_as_float(0x4B000000u | code), 8388608.f);
}

// Codes of eight channels of four tokens; `slot` is a multiple of four.
__device__ void ReadTiledTile(const TensorGeometry& t, uint32_t slots, const uint8_t* unit,
                              uint32_t slot, uint32_t channel, uint32_t (&code)[kQuad][8]) {
  if (t.value != 0) {
    const auto* from =
        reinterpret_cast<const uint4*>(unit + TiledValueByte(t, slots, slot, channel));
    const uint4 a = from[0], b = from[1];
    const uint32_t word[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    const uint32_t shift = t.bits == 4 && channel % 32 >= 16 ? 4 : 0;
    const uint32_t mask = t.bits == 4 ? 15 : 255;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < kQuad; ++j) code[j][i] = word[i] >> (8 * j + shift) & mask;
    }
    return;
  }
  const uint4 a = *reinterpret_cast<const uint4*>(unit + TiledKeyWord(t, slots, slot, channel));
  const uint32_t word[kQuad] = {a.x, a.y, a.z, a.w};
  if (t.bits == 4) {
#pragma unroll
    for (uint32_t j = 0; j < kQuad; ++j) {
#pragma unroll
      for (int i = 0; i < 8; ++i) code[j][i] = word[j] >> (i % 4 * 8 + i / 4 * 4) & 15;
    }
    return;
  }
  const uint4 b = *reinterpret_cast<const uint4*>(unit + TiledKeyWord(t, slots, slot, channel + 4));
  const uint32_t next[kQuad] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      code[j][i] = word[j] >> (8 * i) & 255;
      code[j][4 + i] = next[j] >> (8 * i) & 255;
    }
  }
}

// Two roundings in the format's dtype, as MLX's CPU has them.
template <uint8_t kDtype>
__device__ void Affine(const uint32_t (&code)[kQuad][8], const float (&scale)[kQuad],
                       const float (&bias)[kQuad], float (&x)[kQuad][8]) {
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float product = RoundTo<kDtype>(__fmul_rn(Number(code[j][i]), scale[j]));
      x[j][i] = RoundTo<kDtype>(__fadd_rn(product, bias[j]));
    }
  }
}

// Values of eight channels of four tokens of an affine or q8_0 or q4_0 format, as ReadOctet<true>()
// reads them one by one.
template <uint8_t kCodec, uint32_t kBits>
__device__ void ReadTile(const TensorGeometry& t, const UnitPlaces& p, const uint8_t* unit,
                         uint32_t slot, uint32_t channel, float (&x)[kQuad][8]) {
  uint32_t code[kQuad][8];
  float scale[kQuad], bias[kQuad] = {};
  if (t.layout == kTiled) {
    ReadTiledTile(t, p.slots, unit, slot, channel, code);
  }
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
    if (t.layout == kTiled || kCodec == kMlxAffine) {
      const uint32_t at = ParameterOffset(t, p, slot + j, channel);
      scale[j] = FloatOf(t.dtype, unit + p.scales + at);
      if (kCodec == kMlxAffine) bias[j] = FloatOf(t.dtype, unit + p.biases + at);
    }
    if (t.layout == kTiled) continue;
    const uint8_t* row = unit + (slot + j) * t.row_codes;
    if constexpr (kCodec == kMlxAffine) {
      ReadStreamCodes<kBits>(row + channel / 8 * kBits, code[j]);
    } else {
      scale[j] =
          ReadBlockCodes(t, row + channel / 32 * GgmlBlockBytes(kCodec), channel % 32, code[j])
              .scale;
    }
  }
  if constexpr (kCodec == kMlxAffine) {
    if (t.dtype == kF16) {
      Affine<kF16>(code, scale, bias, x);
    } else if (t.dtype == kBf16) {
      Affine<kBf16>(code, scale, bias, x);
    } else {
      Affine<kF32>(code, scale, bias, x);
    }
  } else {
#pragma unroll
    for (uint32_t j = 0; j < kQuad; ++j) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float number =
            kCodec == kQ8_0 ? Number(code[j][i] ^ 128) - 128 : Number(code[j][i]) - 8;
        x[j][i] = __fmul_rn(number, scale[j]);
      }
    }
  }
}

// Whether a format has no kernel of its own.
constexpr uint8_t kOthers = 0;

__device__ __forceinline__ bool Has(uint8_t codec, uint32_t bits, const TensorGeometry& t) {
  if (codec != kOthers) return t.codec == codec && t.bits == bits;
  return t.codec != kMlxAffine && t.codec != kQ8_0 && t.codec != kQ4_0;
}

// The parts that have this codec. block: (octets of a row, quads of tokens); grid: (part, kv head).
template <uint8_t kCodec, uint32_t kBits>
__global__ void __launch_bounds__(kThreads)
    ExpandKernel(const __grid_constant__ ExpandArguments a, bool value) {
  const BlockPart part = a.parts[blockIdx.x];
  const PairGeometry& pair = a.formats[part.format];
  const TensorGeometry& tensor = value ? pair.value : pair.key;
  if (!Has(kCodec, kBits, tensor)) return;
  const uint32_t head = blockIdx.y;
  const UnitPlaces key = PlacesOf(pair.key, part.page_tokens);
  const UnitPlaces places = value ? PlacesOf(pair.value, part.page_tokens) : key;
  const uint8_t* unit =
      part.units + (value ? size_t{a.kv_heads} * key.bytes : 0) + size_t{head} * places.bytes;
  const uint32_t channel = threadIdx.x * kOctet;
  const HeadOfTensor to(value ? a.value : a.key, a.table, head, channel);
  const uint32_t end = part.first_slot + part.count;
  for (uint32_t slot = (part.first_slot / kQuad + threadIdx.y) * kQuad; slot < end;
       slot += blockDim.y * kQuad) {
    float x[kQuad][8];
    if (kCodec != kOthers && slot + kQuad <= places.slots) {
      ReadTile<kCodec, kBits>(tensor, places, unit, slot, channel, x);
    } else {
#pragma unroll
      for (uint32_t j = 0; j < kQuad; ++j) {
        if (slot + j < places.slots) {
          ReadOctet<true>(tensor, places, unit, slot + j, channel, x[j]);
        }
      }
    }
#pragma unroll
    for (uint32_t j = 0; j < kQuad; ++j) {
      if (slot + j < part.first_slot || slot + j >= end) continue;
      to.Write(part.token + slot + j - part.first_slot, x[j]);
    }
  }
}

template <uint8_t kCodec, uint32_t kBits>
void Launch(const ExpandArguments& a, const bool (&used)[kMostFormats], cudaStream_t stream) {
  for (const bool value : {false, true}) {
    for (uint32_t i = 0; i < kMostFormats; ++i) {
      const TensorGeometry& t = value ? a.formats[i].value : a.formats[i].key;
      const bool has = kCodec != kOthers
                           ? t.codec == kCodec && t.bits == kBits
                           : t.codec != kMlxAffine && t.codec != kQ8_0 && t.codec != kQ4_0;
      if (!used[i] || !has) continue;
      const uint32_t octets = t.dim / kOctet;
      const dim3 block(octets, std::max(1u, std::min(kThreads / octets, 16u)));
      ExpandKernel<kCodec, kBits><<<dim3(a.part_count, a.kv_heads), block, 0, stream>>>(a, value);
      break;
    }
  }
}

}  // namespace

cudaError_t QueueGather(const Piece* pieces, uint32_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  GatherKernel<<<min(count, kMostGatherBlocks), kThreads, 0, stream>>>(pieces, count);
  return cudaGetLastError();
}

cudaError_t QueueExpand(const ExpandArguments& a, const bool (&used)[kMostFormats],
                        cudaStream_t stream) {
  if (a.part_count == 0) return cudaSuccess;
  Launch<kMlxAffine, 2>(a, used, stream);
  Launch<kMlxAffine, 3>(a, used, stream);
  Launch<kMlxAffine, 4>(a, used, stream);
  Launch<kMlxAffine, 5>(a, used, stream);
  Launch<kMlxAffine, 6>(a, used, stream);
  Launch<kMlxAffine, 8>(a, used, stream);
  Launch<kQ8_0, 8>(a, used, stream);
  Launch<kQ4_0, 4>(a, used, stream);
  Launch<kOthers, 0>(a, used, stream);
  return cudaGetLastError();
}

}  // namespace prefixd::cuda
