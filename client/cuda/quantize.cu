// Quantize: a thread has eight channels of four tokens, and the threads of a group find its edges
// together. Every operation rounds as the CPU's does: no fused multiply-add, halves to even.
#include <algorithm>

#include "kernels.h"
#include "octets.cuh"
#include "quads.cuh"
#include "quantize_common.cuh"

namespace prefixd::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kMostThreads = 288;  // four quads of kMaxLatentDim
// From so many tokens on, whole quads go to quantize_quads.cu, and what is before and behind them
// comes here.
constexpr uint32_t kManyTokens = 64;

// a / b, correctly rounded, from `inverse` = 1 / b, correctly rounded: each correction adds the
// exact remainder. For b between 2^-100 and 2^100.
__device__ float Quotient(float a, float b, float inverse) {
  float q = __fmul_rn(a, inverse);
  q = fmaf(fmaf(-q, b, a), inverse, q);
  return fmaf(fmaf(-q, b, a), inverse, q);
}

__device__ uint32_t Rounded(float x) { return __float_as_uint(__fadd_rn(x, kRounder)) & 0xFF; }

// The x of the lane that has this token's, among four neighbours: each of them computes the
// parameters of one of four tokens, and gets those of the others.
__device__ float FromLane(float x, uint32_t token) {
  return __shfl_sync(~0u, x, (threadIdx.x + threadIdx.y * blockDim.x) % 32 / 4 * 4 + token);
}

// Four tokens of eight channels.
struct Tile {
  float x[kQuad][8];
  uint32_t code[kQuad][8];
  float scale[kQuad], bias[kQuad];
};

// The largest value of the group for the token whose parameters this lane computes: lane % 4. In
// each of two steps a lane hands on the tokens that are not its own.
struct OfTokens {
  float x[kQuad];
};
__device__ float OwnMost(const OfTokens& of, uint32_t lanes, uint32_t lane) {
  const bool odd = (lane & 1) != 0, upper = (lane & 2) != 0;
  const float first =
      fmaxf(odd ? of.x[1] : of.x[0], __shfl_xor_sync(~0u, odd ? of.x[0] : of.x[1], 1));
  const float second =
      fmaxf(odd ? of.x[3] : of.x[2], __shfl_xor_sync(~0u, odd ? of.x[2] : of.x[3], 1));
  float most = fmaxf(upper ? second : first, __shfl_xor_sync(~0u, upper ? first : second, 2));
  if (lanes > 4) most = fmaxf(most, __shfl_xor_sync(~0u, most, 4));
  if (lanes > 8) most = fmaxf(most, __shfl_xor_sync(~0u, most, 8));
  return most;
}

template <uint32_t kBits>
__device__ void EncodeAffine(uint32_t lanes, uint32_t lane, Tile& tile) {
  constexpr float kMaxCode = static_cast<float>((1u << kBits) - 1);
  float least[kQuad], most[kQuad];
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
    least[j] = most[j] = tile.x[j][0];
#pragma unroll
    for (int i = 1; i < 8; ++i) {
      least[j] = fminf(least[j], tile.x[j][i]);
      most[j] = fmaxf(most[j], tile.x[j][i]);
    }
  }
  const float low = -OwnMost({-least[0], -least[1], -least[2], -least[3]}, lanes, lane);
  const float high = OwnMost({most[0], most[1], most[2], most[3]}, lanes, lane);
  const Affine mine = FitAffine(low, high, kMaxCode);
  const float my_inverse = __frcp_rn(mine.scale);
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
    const float scale = FromLane(mine.scale, j), bias = FromLane(mine.bias, j);
    const float inverse = FromLane(my_inverse, j);
    if (fabsf(scale) > 0x1p100f) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float code = __fdiv_rn(__fsub_rn(tile.x[j][i], bias), scale);
        tile.code[j][i] = Rounded(fminf(fmaxf(code, 0), kMaxCode));
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float code = Quotient(__fsub_rn(tile.x[j][i], bias), scale, inverse);
        tile.code[j][i] = Rounded(fminf(fmaxf(code, 0), kMaxCode));
      }
    }
    tile.scale[j] = scale;
    tile.bias[j] = bias;
  }
}

template <bool kBytes>
__device__ void EncodeBlocks(uint32_t lane, Tile& tile) {
  float widest = 0;
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
    const float of_token = Widest(tile.x[j], lane);
    if (lane % kQuad == j) widest = of_token;
  }
  const float my_d = kBytes ? __fdiv_rn(fabsf(widest), 127.0f) : __fdiv_rn(widest, -8.0f);
  const float my_inverse = my_d != 0 ? __fdiv_rn(1.0f, my_d) : 0.0f;
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
    tile.scale[j] = FromLane(my_d, j);
    const float inverse = FromLane(my_inverse, j);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float scaled = __fmul_rn(tile.x[j][i], inverse);
      tile.code[j][i] = kBytes ? RoundedCode(scaled) : TruncatedCode(__fadd_rn(scaled, 8.5f));
    }
  }
}

// Eight codes of at most 4 bits in a word.
template <uint32_t kBits>
__device__ uint32_t InAWord(const uint32_t (&code)[8]) {
  uint32_t word = code[0];
#pragma unroll
  for (int i = 1; i < 8; ++i) word += code[i] << (kBits * i);
  return word;
}

__device__ void PutTiledKeys(const TensorGeometry& t, uint32_t slots, uint8_t* unit, uint32_t slot,
                             uint32_t channel, const uint32_t (&code)[8]) {
  if (t.bits == 4) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) word |= code[i] << (i % 4 * 8 + i / 4 * 4);
    *reinterpret_cast<uint32_t*>(unit + TiledKeyWord(t, slots, slot, channel)) = word;
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) word |= code[4 * half + i] << (8 * i);
    *reinterpret_cast<uint32_t*>(unit + TiledKeyWord(t, slots, slot, channel + 4 * half)) = word;
  }
}

// high: the nibbles of the channels 16 further, which share bytes with these.
__device__ void PutTiledValues(const TensorGeometry& t, uint32_t slots, uint8_t* unit,
                               uint32_t slot, uint32_t channel, const uint32_t (&code)[8],
                               uint32_t high) {
  if (t.bits == 4 && channel % 32 >= 16) return;
  uint8_t* at = unit + TiledValueByte(t, slots, slot, channel);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t upper = t.bits == 4 ? high >> (4 * i) << 4 : 0;
    at[4 * i] = static_cast<uint8_t>(code[i] | upper);
  }
}

// Four codes as the bytes of a word.
__device__ uint32_t FourBytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

template <uint32_t kBits>
__device__ void PutStreamCodes(uint8_t* to, const uint32_t (&code)[8]) {
  if constexpr (kBits == 8) {
    *reinterpret_cast<uint2*>(to) = make_uint2(FourBytes(code[0], code[1], code[2], code[3]),
                                               FourBytes(code[4], code[5], code[6], code[7]));
  } else if constexpr (kBits <= 4) {
    const uint32_t bits = InAWord<kBits>(code);
    if constexpr (kBits == 4) {
      *reinterpret_cast<uint32_t*>(to) = bits;
    } else if constexpr (kBits == 2) {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(bits);
    } else {
#pragma unroll
      for (uint32_t i = 0; i < kBits; ++i) to[i] = static_cast<uint8_t>(bits >> (8 * i));
    }
  } else {
    uint64_t bits = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) bits |= uint64_t{code[i]} << (i * kBits);
#pragma unroll
    for (uint32_t i = 0; i < (kBits == 6 ? 3 : 5); ++i) {
      if constexpr (kBits == 6) {
        reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(bits >> (16 * i));
      } else {
        to[i] = static_cast<uint8_t>(bits >> (8 * i));
      }
    }
  }
}

// ggml's own blocks: d, then the codes; q4_0 has element j + 16 in the high nibble of byte j.
__device__ void PutBlock(const TensorGeometry& t, uint8_t* row, uint32_t channel, float d,
                         const uint32_t (&code)[8], uint32_t high) {
  const bool bytes = t.codec == kQ8_0;
  uint8_t* block = row + channel / 32 * GgmlBlockBytes(t.codec);
  const uint32_t at = channel % 32;
  if (at == 0) PutParameter(kF16, d, block);
  if (!bytes && at >= 16) return;
  auto* codes = reinterpret_cast<uint16_t*>(block + 2 + at);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t two = code[2 * i] | code[2 * i + 1] << 8;
    if (!bytes) two |= (high >> (8 * i) & 15) << 4 | (high >> (8 * i + 4) & 15) << 12;
    codes[i] = static_cast<uint16_t>(two);
  }
}

__device__ void PutRaw(const TensorGeometry& t, const UnitPlaces& p, uint8_t* unit, uint32_t slot,
                       uint32_t channel, const float (&x)[8]) {
  const uint32_t element = t.dtype == kF32 ? 4 : 2;
  if (t.layout != kTransposed) {
    WriteElements(t.dtype, x, unit + (slot * t.dim + channel) * element);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    PutParameter(t.dtype, x[i], unit + ((channel + i) * p.slots + slot) * element);
  }
}

// --- tiles ---

// Which of a tile's four tokens there are.
struct TilePlace {
  uint8_t* unit = nullptr;
  uint32_t slot = 0;  // of token 0: a multiple of 4
  uint32_t channel = 0;
  bool there[kQuad] = {};
  bool whole = false;  // all four
};

// Words of four tokens lie side by side.
template <uint32_t kBits>
__device__ void PutTiledTile(const TensorGeometry& t, uint32_t slots, const TilePlace& at,
                             const Tile& tile, const uint32_t (&high)[kQuad]) {
  if (!at.whole) {
#pragma unroll
    for (uint32_t j = 0; j < kQuad; ++j) {
      if (!at.there[j]) continue;
      if (t.value != 0) {
        PutTiledValues(t, slots, at.unit, at.slot + j, at.channel, tile.code[j], high[j]);
      } else {
        PutTiledKeys(t, slots, at.unit, at.slot + j, at.channel, tile.code[j]);
      }
    }
    return;
  }
  uint32_t word[8];
  if (t.value != 0) {
    if (kBits == 4 && at.channel % 32 >= 16) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      word[i] = 0;
#pragma unroll
      for (uint32_t j = 0; j < kQuad; ++j) {
        word[i] |= tile.code[j][i] << (8 * j);
        if (kBits == 4) word[i] |= (high[j] >> (4 * i) & 15) << (8 * j + 4);
      }
    }
    auto* to = reinterpret_cast<uint4*>(at.unit + TiledValueByte(t, slots, at.slot, at.channel));
    to[0] = make_uint4(word[0], word[1], word[2], word[3]);
    to[1] = make_uint4(word[4], word[5], word[6], word[7]);
    return;
  }
#pragma unroll
  for (uint32_t half = 0; half < (kBits == 4 ? 1 : 2); ++half) {
#pragma unroll
    for (uint32_t j = 0; j < kQuad; ++j) {
      word[j] = 0;
#pragma unroll
      for (int i = 0; i < (kBits == 4 ? 8 : 4); ++i) {
        word[j] |= tile.code[j][4 * half + i] << (i % 4 * 8 + i / 4 * 4);
      }
    }
    *reinterpret_cast<uint4*>(at.unit + TiledKeyWord(t, slots, at.slot, at.channel + 4 * half)) =
        make_uint4(word[0], word[1], word[2], word[3]);
  }
}

__device__ void PutParameters(const TensorGeometry& t, const UnitPlaces& p, const TilePlace& at,
                              const Tile& tile) {
  const ParameterPlace place = ParametersOf(t, p, at.slot, at.channel);
  uint8_t* scales = at.unit + p.scales + place.offset;
  uint8_t* biases = at.unit + p.biases + place.offset;
  const bool has_biases = t.row_biases != 0;
  if (t.dtype == kF32) {
#pragma unroll
    for (uint32_t j = 0; j < kQuad; ++j) {
      if (!at.there[j]) continue;
      *reinterpret_cast<float*>(scales + j * place.stride) = tile.scale[j];
      if (has_biases) *reinterpret_cast<float*>(biases + j * place.stride) = tile.bias[j];
    }
    return;
  }
  uint32_t scale_bits[kQuad], bias_bits[kQuad];
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
    scale_bits[j] = BitsOf(t.dtype, tile.scale[j]);
    bias_bits[j] = has_biases ? BitsOf(t.dtype, tile.bias[j]) : 0;
  }
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
    if (!at.there[j]) continue;
    *reinterpret_cast<uint16_t*>(scales + j * place.stride) = static_cast<uint16_t>(scale_bits[j]);
    if (!has_biases) continue;
    *reinterpret_cast<uint16_t*>(biases + j * place.stride) = static_cast<uint16_t>(bias_bits[j]);
  }
}

// kCodec kMlxAffine, kQ8_0 or kQ4_0. Called by whole warps: threads without tokens of their own
// only take part in the shuffles.
template <uint8_t kCodec, uint32_t kBits>
__device__ void PutTile(const TensorGeometry& t, const UnitPlaces& p, const TilePlace& at,
                        uint32_t lane, Tile& tile) {
  if constexpr (kCodec == kMlxAffine) {
    EncodeAffine<kBits>(t.group / kOctet, lane, tile);
  } else {
    EncodeBlocks<kCodec == kQ8_0>(lane, tile);
  }
  uint32_t high[kQuad] = {};
  if constexpr (kBits == 4) {
#pragma unroll
    for (uint32_t j = 0; j < kQuad; ++j) {
      high[j] = __shfl_down_sync(~0u, InAWord<4>(tile.code[j]), 2);
    }
  }
  if (t.layout == kTiled) {
    if constexpr (kBits == 4 || kBits == 8) PutTiledTile<kBits>(t, p.slots, at, tile, high);
  } else {
#pragma unroll
    for (uint32_t j = 0; j < kQuad; ++j) {
      if (!at.there[j]) continue;
      uint8_t* row = at.unit + (at.slot + j) * t.row_codes;
      if constexpr (kCodec == kMlxAffine) {
        PutStreamCodes<kBits>(row + at.channel / 8 * kBits, tile.code[j]);
      } else {
        PutBlock(t, row, at.channel, tile.scale[j], tile.code[j], high[j]);
      }
    }
    if (kCodec != kMlxAffine) return;
  }
  if ((at.channel & (t.group - 1u)) == 0) PutParameters(t, p, at, tile);
}

// block: (octets of a row, quads of tokens); grid: (blocks for all quads, kv head). A group's
// threads are neighbours of one warp, since a row's octets are whole groups of at least four.
template <uint8_t kCodec, uint32_t kBits>
__global__ void __launch_bounds__(kMostThreads)
    QuantizeKernel(const __grid_constant__ QuantizeArguments a) {
  const uint32_t quads_of_page = (a.page_tokens + kQuad - 1) / kQuad;
  const uint32_t quad = blockIdx.x * blockDim.y + threadIdx.y + a.first_slot / kQuad;
  const uint32_t page = quad / quads_of_page;
  const uint32_t end = a.first_slot + a.count;  // slots are counted through all pages
  TilePlace at;
  at.slot = quad % quads_of_page * kQuad;
  at.channel = threadIdx.x * kOctet;
  const uint32_t first = page * a.page_tokens + at.slot;
  const HeadOfTensor rows(a.rows, a.table, blockIdx.y, at.channel);
  Tile tile;
  at.whole = true;
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
    at.there[j] = first + j >= a.first_slot && first + j < end && at.slot + j < a.page_tokens;
    at.whole = at.whole && at.there[j];
#pragma unroll
    for (int i = 0; i < 8; ++i) tile.x[j][i] = 0;
  }
  rows.ReadFour(a.begin + first - a.first_slot, at.there, tile.x);
  if (page * a.page_tokens < end) {
    at.unit = a.pages[page] + blockIdx.y * a.unit_stride;
  }
  if constexpr (kCodec == kRaw) {
#pragma unroll
    for (uint32_t j = 0; j < kQuad; ++j) {
      if (at.there[j]) PutRaw(a.tensor, a.places, at.unit, at.slot + j, at.channel, tile.x[j]);
    }
  } else {
    PutTile<kCodec, kBits>(a.tensor, a.places, at, (threadIdx.x + threadIdx.y * blockDim.x) % 32,
                           tile);
  }
}

template <uint8_t kCodec, uint32_t kBits>
void Launch(const QuantizeArguments& a, cudaStream_t stream) {
  const uint32_t octets = a.tensor.dim / kOctet;
  // Whole warps: a row of a quantized format has a multiple of four octets, a long one of eight.
  const uint32_t rows = a.tensor.dim > kMaxDim ? 4 : std::max(1u, kThreads / octets / 8) * 8;
  const dim3 block(octets, kCodec == kRaw ? std::max(1u, kThreads / octets) : rows);
  const uint32_t quads_of_page = (a.page_tokens + kQuad - 1) / kQuad;
  const uint32_t pages = (a.first_slot + a.count + a.page_tokens - 1) / a.page_tokens;
  const uint32_t quads = pages * quads_of_page - a.first_slot / kQuad;
  QuantizeKernel<kCodec, kBits>
      <<<dim3((quads + block.y - 1) / block.y, a.kv_heads), block, 0, stream>>>(a);
}

cudaError_t QueueAny(const QuantizeArguments& a, cudaStream_t stream) {
  if (a.count == 0) return cudaSuccess;
  switch (a.tensor.codec == kMlxAffine ? a.tensor.bits : 100 + a.tensor.codec) {
    case 2:
      Launch<kMlxAffine, 2>(a, stream);
      break;
    case 3:
      Launch<kMlxAffine, 3>(a, stream);
      break;
    case 4:
      Launch<kMlxAffine, 4>(a, stream);
      break;
    case 5:
      Launch<kMlxAffine, 5>(a, stream);
      break;
    case 6:
      Launch<kMlxAffine, 6>(a, stream);
      break;
    case 8:
      Launch<kMlxAffine, 8>(a, stream);
      break;
    case 100 + kQ8_0:
      Launch<kQ8_0, 8>(a, stream);
      break;
    case 100 + kQ4_0:
      Launch<kQ4_0, 4>(a, stream);
      break;
    default:
      Launch<kRaw, 0>(a, stream);
  }
  return cudaGetLastError();
}

// Tokens [from, from + count) of those of `a`.
QuantizeArguments PartOf(const QuantizeArguments& a, uint32_t from, uint32_t count) {
  QuantizeArguments part = a;
  part.first_slot += from;
  part.begin += from;
  part.count = count;
  return part;
}

}  // namespace

cudaError_t QueueQuantize(const QuantizeArguments& a, cudaStream_t stream) {
  const uint32_t before = (kQuad - a.first_slot % kQuad) % kQuad;
  if (a.count < before + kManyTokens || !TakesQuads(a)) return QueueAny(a, stream);
  const uint32_t in_quads = (a.count - before) / kQuad * kQuad;
  const uint32_t behind = before + in_quads;
  cudaError_t error = QueueAny(PartOf(a, 0, before), stream);
  if (error == cudaSuccess) error = QueueQuantizeQuads(PartOf(a, before, in_quads), stream);
  if (error != cudaSuccess) return error;
  return QueueAny(PartOf(a, behind, a.count - behind), stream);
}

}  // namespace prefixd::cuda
