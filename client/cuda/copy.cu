// Gather: scattered pages into device memory, 16 bytes a thread. Expand: units into an engine's
// tensors.
#include <algorithm>
#include <bit>

#include "kernels.h"
#include "octets.cuh"
#include "quads.cuh"

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

// An integer below 2^23 as a float, without the slow conversion.
__device__ float Number(uint32_t code) {
  return __fsub_rn(__uint_as_float(0x4B000000u | code), 8388608.f);
}

// What a tile needs of memory, as it lies: eight channels of four tokens. All is asked for before
// any of it is looked at, so that one wait covers all.
template <uint8_t kCodec, uint32_t kBits>
struct TileBytes {
  static constexpr bool kHasRows = kCodec == kMlxAffine;
  uint4 words[2];             // tiled
  uint32_t stream[kQuad][2];  // rows of MLX's stream: kBits bytes each
  uint32_t scales[kQuad], biases[kQuad];

  __device__ void Read(const TensorGeometry& t, const UnitPlaces& p, const uint8_t* unit,
                       uint32_t slot, uint32_t channel) {
    const ParameterPlace at = ParametersOf(t, p, slot, channel);
    const uint8_t* scale = unit + p.scales + at.offset;
    const uint8_t* bias = unit + p.biases + at.offset;
    if (t.dtype == kF32) {
#pragma unroll
      for (uint32_t j = 0; j < kQuad; ++j) {
        scales[j] = *reinterpret_cast<const uint32_t*>(scale + j * at.stride);
        if (kHasRows) biases[j] = *reinterpret_cast<const uint32_t*>(bias + j * at.stride);
      }
    } else {
#pragma unroll
      for (uint32_t j = 0; j < kQuad; ++j) {
        scales[j] = *reinterpret_cast<const uint16_t*>(scale + j * at.stride);
        if (kHasRows) biases[j] = *reinterpret_cast<const uint16_t*>(bias + j * at.stride);
      }
    }
    if (t.layout == kTiled) {
      if (t.value != 0) {
        const auto* from =
            reinterpret_cast<const uint4*>(unit + TiledValueByte(t, p.slots, slot, channel));
        words[0] = from[0];
        words[1] = from[1];
      } else {
        words[0] = *reinterpret_cast<const uint4*>(unit + TiledKeyWord(t, p.slots, slot, channel));
        if (kBits == 8) {
          words[1] =
              *reinterpret_cast<const uint4*>(unit + TiledKeyWord(t, p.slots, slot, channel + 4));
        }
      }
    } else {
      const uint8_t* row = unit + slot * t.row_codes + channel / 8 * kBits;
#pragma unroll
      for (uint32_t j = 0; j < kQuad; ++j) ReadStream(row + j * t.row_codes, stream[j]);
    }
  }

  // Unpacks eight codes of token j.
  __device__ void Codes(const TensorGeometry& t, uint32_t channel, uint32_t j,
                        uint32_t (&code)[8]) const {
    const uint32_t word[8] = {words[0].x, words[0].y, words[0].z, words[0].w,
                              words[1].x, words[1].y, words[1].z, words[1].w};
    constexpr uint32_t kMask = (1u << kBits) - 1;
    if (t.layout != kTiled) {
      const uint64_t bits = stream[j][0] | uint64_t{stream[j][1]} << 32;
#pragma unroll
      for (int i = 0; i < 8; ++i) code[i] = static_cast<uint32_t>(bits >> (i * kBits)) & kMask;
    } else if (t.value != 0) {
      const uint32_t shift = 8 * j + (kBits == 4 && channel % 32 >= 16 ? 4 : 0);
#pragma unroll
      for (int i = 0; i < 8; ++i) code[i] = word[i] >> shift & kMask;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        code[i] = (kBits == 4 ? word[j] >> (i % 4 * 8 + i / 4 * 4)
                              : word[(j + i / 4 * 4) % 8] >> (i % 4 * 8)) &
                  kMask;
      }
    }
  }

 private:
  static __device__ void ReadStream(const uint8_t* from, uint32_t (&bits)[2]) {
    bits[0] = bits[1] = 0;
    if constexpr (kBits == 8) {
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      bits[0] = two.x;
      bits[1] = two.y;
    } else if constexpr (kBits == 4) {
      bits[0] = *reinterpret_cast<const uint32_t*>(from);
    } else if constexpr (kBits % 2 == 0) {
#pragma unroll
      for (uint32_t i = 0; i < kBits / 2; ++i) {
        bits[i / 2] |= uint32_t{reinterpret_cast<const uint16_t*>(from)[i]} << (i % 2 * 16);
      }
    } else {
#pragma unroll
      for (uint32_t i = 0; i < kBits; ++i) bits[i / 4] |= uint32_t{from[i]} << (i % 4 * 8);
    }
  }
};

// Two roundings in the format's dtype, as MLX's CPU has them.
template <uint8_t kDtype>
__device__ void Affine(const uint32_t (&code)[8], float scale, float bias, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float product = RoundTo<kDtype>(__fmul_rn(Number(code[i]), scale));
    x[i] = RoundTo<kDtype>(__fadd_rn(product, bias));
  }
}

// Values of token j, as ReadOctet<true>() reads them.
template <uint8_t kCodec, uint32_t kBits>
__device__ void ValuesOf(const TileBytes<kCodec, kBits>& bytes, const TensorGeometry& t,
                         uint32_t channel, uint32_t j, float (&x)[8]) {
  uint32_t code[8];
  bytes.Codes(t, channel, j, code);
  const float scale = FloatOfBits(t.dtype, bytes.scales[j]);
  if constexpr (kCodec == kMlxAffine) {
    const float bias = FloatOfBits(t.dtype, bytes.biases[j]);
    if (t.dtype == kF16) {
      Affine<kF16>(code, scale, bias, x);
    } else if (t.dtype == kBf16) {
      Affine<kBf16>(code, scale, bias, x);
    } else {
      Affine<kF32>(code, scale, bias, x);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float number = kCodec == kQ8_0 ? Number(code[i] ^ 128) - 128 : Number(code[i]) - 8;
      x[i] = __fmul_rn(number, scale);
    }
  }
}

// Whether a format has no kernel of its own.
constexpr uint8_t kOthers = 0;

// block: (octets of a row, quads of tokens); grid: (part, kv head). formats: as of
// QueueExpandQuads().
template <uint8_t kCodec, uint32_t kBits>
__global__ void __launch_bounds__(kThreads, kCodec == kOthers ? 2 : 4)
    ExpandKernel(const __grid_constant__ ExpandArguments a, bool value, uint32_t formats) {
  const BlockPart part = a.parts[blockIdx.x];
  if ((formats >> (part.format + (value ? kMostFormats : 0)) & 1) == 0) return;
  const PairGeometry& pair = a.formats[part.format];
  const TensorGeometry& tensor = value ? pair.value : pair.key;
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
    const uint32_t token = part.token + slot - part.first_slot;
    if constexpr (kCodec != kOthers) {
      if (slot + kQuad <= places.slots && (kCodec == kMlxAffine || tensor.layout == kTiled)) {
        TileBytes<kCodec, kBits> bytes;
        bytes.Read(tensor, places, unit, slot, channel);
#pragma unroll
        for (uint32_t j = 0; j < kQuad; ++j) {
          if (slot + j < part.first_slot || slot + j >= end) continue;
          float x[8];
          ValuesOf<kCodec, kBits>(bytes, tensor, channel, j, x);
          to.Write(token + j, x);
        }
        continue;
      }
    }
    for (uint32_t j = 0; j < kQuad; ++j) {
      if (slot + j < part.first_slot || slot + j >= end) continue;
      float x[8];
      ReadOctet<true>(tensor, places, unit, slot + j, channel, x);
      to.Write(token + j, x);
    }
  }
}

template <uint8_t kCodec, uint32_t kBits>
cudaError_t Launch(const ExpandArguments& a, const TensorGeometry& t, uint32_t formats,
                   cudaStream_t stream) {
  const uint32_t octets = t.dim / kOctet;
  const dim3 block(octets, std::max(1u, std::min(kThreads / octets, 16u)));
  ExpandKernel<kCodec, kBits>
      <<<dim3(a.part_count, a.kv_heads), block, 0, stream>>>(a, t.value != 0, formats);
  return cudaGetLastError();
}

// The kernel of a tensor's format: MLX's bits, or 100 + ggml's codec, or 0 for others.
uint32_t KernelOf(const TensorGeometry& t) {
  if (t.codec == kMlxAffine) return t.bits;
  return t.codec == kQ8_0 || t.codec == kQ4_0 ? 100 + t.codec : 0;
}

cudaError_t QueueAny(const ExpandArguments& a, const TensorGeometry& t, uint32_t formats,
                     cudaStream_t stream) {
  switch (KernelOf(t)) {
    case 2:
      return Launch<kMlxAffine, 2>(a, t, formats, stream);
    case 3:
      return Launch<kMlxAffine, 3>(a, t, formats, stream);
    case 4:
      return Launch<kMlxAffine, 4>(a, t, formats, stream);
    case 5:
      return Launch<kMlxAffine, 5>(a, t, formats, stream);
    case 6:
      return Launch<kMlxAffine, 6>(a, t, formats, stream);
    case 8:
      return Launch<kMlxAffine, 8>(a, t, formats, stream);
    case 100 + kQ8_0:
      return Launch<kQ8_0, 8>(a, t, formats, stream);
    case 100 + kQ4_0:
      return Launch<kQ4_0, 4>(a, t, formats, stream);
    default:
      return Launch<kOthers, 0>(a, t, formats, stream);
  }
}

// The tensor of a bit of formats: K's formats, then V's.
const TensorGeometry& TensorOf(const ExpandArguments& a, uint32_t bit) {
  const PairGeometry& pair = a.formats[bit % kMostFormats];
  return bit < kMostFormats ? pair.key : pair.value;
}

bool GoesByQuads(const ExpandArguments& a, const TensorGeometry& t) {
  return a.whole_quads && ExpandsQuads(t, t.value != 0 ? a.value : a.key);
}

// Whether two tensors are for one launch.
bool Joins(const ExpandArguments& a, const TensorGeometry& x, const TensorGeometry& y) {
  if (KernelOf(x) != KernelOf(y) || GoesByQuads(a, x) != GoesByQuads(a, y)) return false;
  if (!GoesByQuads(a, x)) return x.value == y.value;
  const bool one_kind = x.value == y.value || (x.layout == kRows && a.key.dtype == a.value.dtype);
  return one_kind && x.layout == y.layout && x.dtype == y.dtype && x.dim == y.dim;
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
  uint32_t left = 0;
  for (uint32_t bit = 0; bit < 2 * kMostFormats; ++bit) {
    if (used[bit % kMostFormats] && TensorOf(a, bit).dim != 0) left |= 1u << bit;
  }
  while (left != 0) {
    const TensorGeometry& t = TensorOf(a, static_cast<uint32_t>(std::countr_zero(left)));
    uint32_t formats = 0;
    for (uint32_t bit = 0; bit < 2 * kMostFormats; ++bit) {
      if ((left >> bit & 1) != 0 && Joins(a, t, TensorOf(a, bit))) formats |= 1u << bit;
    }
    const cudaError_t error = GoesByQuads(a, t) ? QueueExpandQuads(a, t, formats, stream)
                                                : QueueAny(a, t, formats, stream);
    if (error != cudaSuccess) return error;
    left &= ~formats;
  }
  return cudaSuccess;
}

}  // namespace prefixd::cuda
