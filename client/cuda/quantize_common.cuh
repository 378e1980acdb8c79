// What both ways to quantize share: scales, and exact quotients and roundings. Every operation
// rounds as the CPU's does: no fused multiply-add but where it is exact, halves to even.
//
// Device functions, any thread by itself.
#pragma once
#include <cstdint>

#include "geometry.h"
#include "octets.cuh"

namespace prefixd::cuda {

constexpr float kSmallestScale = 1e-7f;

// Adding it to a float of [0, 2^22) rounds to an integer, halves to even, in the low bits.
constexpr float kRounder = 12582912.f;

struct Affine {
  float scale = 0, bias = 0;
};

__device__ __forceinline__ Affine FitAffine(float low, float high, float max_code) {
  const bool negative_edge = fabsf(low) > fabsf(high);
  const float step = fmaxf(__fdiv_rn(__fsub_rn(high, low), max_code), kSmallestScale);
  const float edge = negative_edge ? low : high;
  const float scale = negative_edge ? step : -step;
  const float zero_code = rintf(__fdiv_rn(edge, scale));
  if (zero_code == 0) return {scale, 0};
  return {__fdiv_rn(edge, zero_code), edge};
}

// The first element of largest magnitude of the group's four lanes.
__device__ __forceinline__ float Widest(const float (&x)[8], uint32_t lane) {
  float widest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (fabsf(widest) < fabsf(x[i])) widest = x[i];
  }
#pragma unroll
  for (uint32_t step = 1; step < 4; step *= 2) {
    const float other = __shfl_xor_sync(~0u, widest, step);
    const bool other_first = (lane & step) != 0;
    const bool takes_other =
        other_first ? fabsf(other) >= fabsf(widest) : fabsf(widest) < fabsf(other);
    if (takes_other) widest = other;
  }
  return widest;
}

// Truncated to [0, 15]; 0 for what is no number, as x86 converts it.
__device__ __forceinline__ uint32_t TruncatedCode(float x) {
  if (!(x >= 0 && x < 256)) return 0;
  return __float_as_uint(__fadd_rz(fminf(x, 15), 8388608.f)) & 15;
}

// Halves away from zero.
__device__ __forceinline__ uint32_t RoundedCode(float x) {
  if (!(x > -128.5f && x < 127.5f)) return 0;
  const float even = __fsub_rn(__fadd_rn(x, kRounder), kRounder);
  const float rest = __fsub_rn(x, even);
  const float away = rest == 0.5f && x > 0 ? even + 1 : rest == -0.5f && x < 0 ? even - 1 : even;
  return __float_as_uint(__fadd_rn(away, kRounder)) & 0xFF;
}

__device__ __forceinline__ void PutParameter(uint8_t dtype, float x, uint8_t* to) {
  if (dtype == kF32) {
    *reinterpret_cast<float*>(to) = x;
  } else {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(BitsOf(dtype, x));
  }
}

}  // namespace prefixd::cuda
