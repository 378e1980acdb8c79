// Quantize: a thread has eight channels of a token, and the threads of a group find its edges
// together. Every operation rounds as the CPU's does: no fused multiply-add, halves to even.
#include "kernels.h"
#include "octets.cuh"

namespace prefixd::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr float kSmallestScale = 1e-7f;

struct Affine {
  float scale = 0, bias = 0;
};

__device__ Affine FitAffine(const float (&x)[8], uint32_t lanes, float max_code) {
  float low = __int_as_float(0x7f800000), high = -low;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    low = fminf(low, x[i]);
    high = fmaxf(high, x[i]);
  }
  for (uint32_t step = 1; step < lanes; step *= 2) {
    low = fminf(low, __shfl_xor_sync(~0u, low, step));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, step));
  }
  const bool negative_edge = fabsf(low) > fabsf(high);
  const float step = fmaxf(__fdiv_rn(__fsub_rn(high, low), max_code), kSmallestScale);
  const float edge = negative_edge ? low : high;
  const float scale = negative_edge ? step : -step;
  const float zero_code = rintf(__fdiv_rn(edge, scale));
  if (zero_code == 0) return {scale, 0};
  return {__fdiv_rn(edge, zero_code), edge};
}

__device__ uint32_t CodeOf(float x, Affine affine, float max_code) {
  const float code = rintf(__fdiv_rn(__fsub_rn(x, affine.bias), affine.scale));
  if (!(code > 0)) return 0;
  return static_cast<uint32_t>(code < max_code ? code : max_code);
}

// The element of largest magnitude of the group's four threads, the first of several.
__device__ float Widest(const float (&x)[8]) {
  float widest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (fabsf(widest) < fabsf(x[i])) widest = x[i];
  }
  for (uint32_t step = 1; step < 4; step *= 2) {
    const float other = __shfl_xor_sync(~0u, widest, step);
    const bool other_first = (threadIdx.x & step) != 0;
    const bool takes_other =
        other_first ? fabsf(other) >= fabsf(widest) : fabsf(widest) < fabsf(other);
    if (takes_other) widest = other;
  }
  return widest;
}

__device__ uint32_t TruncatedCode(float value) {
  if (!(value >= 0 && value < 256)) return 0;
  return min(static_cast<uint32_t>(value), 15u);
}

__device__ uint32_t RoundedCode(float value) {
  const float rounded = roundf(value);
  if (!(rounded >= -128 && rounded <= 127)) return 0;
  return static_cast<uint32_t>(static_cast<int>(rounded)) & 255;
}

// q8_0 and q4_0. Returns d.
__device__ float EncodeBlock(const TensorGeometry& t, const float (&x)[8], uint32_t (&code)[8]) {
  const float widest = Widest(x);
  const bool bytes = t.codec == kQ8_0;
  const float d = bytes ? __fdiv_rn(fabsf(widest), 127.0f) : __fdiv_rn(widest, -8.0f);
  const float inverse = d != 0 ? __fdiv_rn(1.0f, d) : 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float scaled = __fmul_rn(x[i], inverse);
    code[i] = bytes ? RoundedCode(scaled) : TruncatedCode(__fadd_rn(scaled, 8.5f));
  }
  return d;
}

__device__ void PutParameter(uint8_t dtype, float x, uint8_t* to) {
  if (dtype == kF32) {
    *reinterpret_cast<float*>(to) = x;
  } else {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(BitsOf(dtype, x));
  }
}

// Eight codes of at most 4 bits in a word.
__device__ uint32_t Nibbles(const uint32_t (&code)[8]) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) word |= code[i] << (4 * i);
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

__device__ void PutStreamCodes(const TensorGeometry& t, uint8_t* to, const uint32_t (&code)[8]) {
  uint64_t bits = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) bits |= uint64_t{code[i]} << (i * t.bits);
  if (t.bits == 8) {
    *reinterpret_cast<uint64_t*>(to) = bits;
  } else if (t.bits == 4) {
    *reinterpret_cast<uint32_t*>(to) = static_cast<uint32_t>(bits);
  } else {
    for (uint32_t i = 0; i < t.bits; ++i) to[i] = static_cast<uint8_t>(bits >> (8 * i));
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

// Called by whole warps: threads without a token of their own only take part in the shuffles.
__device__ void PutOctet(const TensorGeometry& t, const UnitPlaces& p, uint8_t* unit, uint32_t slot,
                         uint32_t channel, const float (&x)[8], bool writes) {
  uint32_t code[8];
  Affine affine;
  if (t.codec == kMlxAffine) {
    const float max_code = static_cast<float>((1u << t.bits) - 1);
    affine = FitAffine(x, t.group / kOctet, max_code);
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = CodeOf(x[i], affine, max_code);
  } else {
    affine.scale = EncodeBlock(t, x, code);
  }
  uint32_t high = 0;
  if (t.bits == 4) high = __shfl_down_sync(~0u, Nibbles(code), 2);
  if (!writes) return;
  if (t.codec != kMlxAffine && t.layout != kTiled) {
    PutBlock(t, unit + slot * t.row_codes, channel, affine.scale, code, high);
    return;
  }
  if (t.layout != kTiled) {
    PutStreamCodes(t, unit + slot * t.row_codes + channel / 8 * t.bits, code);
  } else if (t.value != 0) {
    PutTiledValues(t, p.slots, unit, slot, channel, code, high);
  } else {
    PutTiledKeys(t, p.slots, unit, slot, channel, code);
  }
  if (channel % t.group != 0) return;
  const uint32_t at = ParameterOffset(t, p, slot, channel);
  PutParameter(t.dtype, affine.scale, unit + p.scales + at);
  if (t.row_biases != 0) PutParameter(t.dtype, affine.bias, unit + p.biases + at);
}

// grid: (threads for the octets of all tokens of a head, kv head).
__global__ void __launch_bounds__(kThreads)
    QuantizeKernel(const __grid_constant__ QuantizeArguments a) {
  const uint32_t octets = a.tensor.dim / kOctet;
  const uint32_t all = a.count * octets;
  const uint32_t mine = blockIdx.x * kThreads + threadIdx.x;
  // A group's threads are neighbours of one warp, since a token's octets are whole groups.
  const uint32_t token = min(mine / octets, a.count - 1);
  const uint32_t channel = mine % octets * kOctet;
  float x[8];
  ReadTensor(a.rows, a.table, a.begin + token, blockIdx.y, channel, x);
  const uint32_t slot = a.first_slot + token;
  uint8_t* unit = a.pages[slot / a.page_tokens] + blockIdx.y * a.unit_stride;
  const bool writes = mine < all;
  if (a.tensor.codec == kRaw) {
    if (writes) PutRaw(a.tensor, a.places, unit, slot % a.page_tokens, channel, x);
  } else {
    PutOctet(a.tensor, a.places, unit, slot % a.page_tokens, channel, x, writes);
  }
}

}  // namespace

cudaError_t QueueQuantize(const QuantizeArguments& a, cudaStream_t stream) {
  if (a.count == 0) return cudaSuccess;
  const uint32_t blocks = (a.count * (a.tensor.dim / kOctet) + kThreads - 1) / kThreads;
  QuantizeKernel<<<dim3(blocks, a.kv_heads), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace prefixd::cuda
