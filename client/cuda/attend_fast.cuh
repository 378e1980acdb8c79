// Attention on codes as they are stored, by tensor cores. A warp takes one page of one kv head at a
// time, from a ring of its own in shared memory, and keeps its own online softmax.
//
// How it computes
//  - A code enters as an fp16 subnormal: the integer n in the low bits of a half is n * 2^-24, and
//    n * 2^-20 in bits 4 to 7. So 8-bit codes take a byte permutation for two of them, 4-bit codes
//    one AND. Nothing is subtracted; the factor goes into the scores' scale and the last product.
//  - Tokens and channels are the rows of the products (m16n8k16), a segment's columns are the 8
//    columns: scores^T = K q^T, result^T = V^T weights^T.
//  - score = scale * (codes . q) + bias * sum(q), for each group of channels. For values the weight
//    takes the scale, and weight * bias is summed in float.
//  - The order of tokens and channels inside a product is free. It is chosen so that what a lane
//    needs are whole words of the page as it lies.
//  - fp16 has 5 bits of exponent. Queries are divided by a power of 2 near their largest element;
//    weights times scales are kept near 2^6 by the exponent of the largest V scale so far.
#pragma once
#include <cstdint>

#include "async_copy.cuh"
#include "attend_common.cuh"

namespace prefixd::cuda {

enum class Parameters { kF16, kBf16, kGgml };  // ggml: f16 scales, no biases; zero is code 128 or 8

// A format of K and V that has a fast kernel.
template <uint32_t kDim_, uint32_t kKeyBits_, uint32_t kValueBits_, uint32_t kGroup_, bool kTiled_,
          Parameters kParameters_>
struct FastFormat {
  static constexpr uint32_t kDim = kDim_, kKeyBits = kKeyBits_, kValueBits = kValueBits_;
  static constexpr uint32_t kGroup = kGroup_, kGroups = kDim / kGroup;
  static constexpr bool kTiled = kTiled_;
  static constexpr Parameters kParameters = kParameters_;
  static constexpr bool kGgml = kParameters == Parameters::kGgml;
  static constexpr uint32_t kKeyRow = kDim * kKeyBits / 8, kValueRow = kDim * kValueBits / 8;
  static constexpr uint32_t kParameterRow = 2 * kGroups;  // scales of a token
  static constexpr uint32_t kSteps = kDim / 16;           // products along q.k, tiles of channels
  static_assert(kTiled || kGroup % 64 == 0, "in rows, a lane's words are 16 channels of 64");
};

__device__ __forceinline__ uint32_t Load32(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at));
  return x;
}
__device__ __forceinline__ uint2 Load64(uint32_t at) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at));
  return x;
}
__device__ __forceinline__ uint4 Load128(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at));
  return x;
}
__device__ __forceinline__ uint32_t Bytes(uint32_t a, uint32_t b, uint32_t which) {
  uint32_t x;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(b), "r"(which));
  return x;
}
__device__ __forceinline__ uint32_t Halves(float low, float high) {
  uint32_t x;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
__device__ __forceinline__ uint32_t Transposed(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
struct Fragment {
  uint32_t low[2], high[2];  // rows g and g + 8, of columns 2i, 2i + 1 and of those + 8
};
__device__ __forceinline__ void Multiply(float (&sum)[4], const Fragment& a, uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a.low[0]), "r"(a.low[1]), "r"(a.high[0]), "r"(a.high[1]), "r"(b0), "r"(b1));
}

// Bytes 0, 1 and 2, 3 of a word as halves; bytes 0, 2 and 1, 3.
inline constexpr uint32_t kBytes01 = 0x4140, kBytes23 = 0x4342;
inline constexpr uint32_t kBytes02 = 0x4240, kBytes13 = 0x4341;
inline constexpr uint32_t kLowNibbles = 0x000F000F, kHighNibbles = 0x00F000F0;
inline constexpr float kOfSubnormal = 16777216.f;  // 2^24
inline constexpr float kOfHighNibble = 1048576.f;  // 2^20
inline constexpr float kWeightRoom = 6.f;          // weights are at most 2^6

// The warp's lanes as the products see them.
struct Lane {
  uint32_t g, i;  // row or column group; pair of columns
};

// Where a unit's parts are in shared memory, and its slots.
struct StageUnit {
  uint32_t codes = 0, scales = 0, biases = 0;
  uint32_t slots = 0;
};

// The two slots whose rows a lane has in the 16 slots from `slot`: rows g and g + 8.
template <typename F>
__device__ __forceinline__ uint2 SlotsOf(uint32_t slot, Lane lane) {
  if constexpr (F::kTiled) return make_uint2(slot + 2 * lane.g, slot + 2 * lane.g + 1);
  const uint32_t a = slot + (lane.g >> 1) + 4 * (lane.g & 1);
  return make_uint2(a, a + 8);
}

template <typename F>
__device__ __forceinline__ float2 PairOf(uint32_t word) {
  if (F::kParameters == Parameters::kBf16) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
  }
  const uint32_t bits = word;
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}

// Parameters of a lane's two slots as they lie: in layout tiled a word has both slots of a group,
// in rows it has two groups of a slot.
template <typename F>
struct ParameterWords {
  static constexpr uint32_t kWords = F::kGroups == 1 && !F::kTiled ? 2 : F::kGroups;
  uint32_t word[kWords];

  __device__ __forceinline__ void Read(uint32_t at, uint32_t slots, uint32_t slot, Lane lane) {
    const uint2 mine = SlotsOf<F>(slot, lane);
    if constexpr (F::kTiled) {
#pragma unroll
      for (uint32_t group = 0; group < F::kGroups; ++group) {
        word[group] = Load32(at + 2 * (group * slots + mine.x));
      }
    } else {
#pragma unroll
      for (uint32_t which = 0; which < 2; ++which) {
        const uint32_t row = at + (which == 0 ? mine.x : mine.y) * F::kParameterRow;
        if constexpr (F::kGroups == 1) {
          word[which] = Load32(row & ~3u) >> (row % 4 * 8) & 0xFFFF;
        } else {
#pragma unroll
          for (uint32_t group = 0; group < F::kGroups; group += 2) {
            word[which * (F::kGroups / 2) + group / 2] = Load32(row + 2 * group);
          }
        }
      }
    }
  }
  // Takes out the parameters of slots that are not there.
  __device__ __forceinline__ void Keep(bool first, bool second) {
#pragma unroll
    for (uint32_t k = 0; k < kWords; ++k) {
      if constexpr (F::kTiled) {
        word[k] &= (first ? 0xFFFFu : 0) | (second ? 0xFFFF0000u : 0);
      } else {
        if (!(k < kWords / 2 ? first : second)) word[k] = 0;
      }
    }
  }
  // [slot][group]
  __device__ __forceinline__ void Widen(float (&x)[2][F::kGroups]) const {
#pragma unroll
    for (uint32_t k = 0; k < kWords; ++k) {
      const float2 both = PairOf<F>(word[k]);
      if constexpr (F::kTiled) {
        x[0][k] = both.x;
        x[1][k] = both.y;
      } else if constexpr (F::kGroups == 1) {
        x[k][0] = both.x;
      } else {
        x[k / (F::kGroups / 2)][2 * (k % (F::kGroups / 2))] = both.x;
        x[k / (F::kGroups / 2)][2 * (k % (F::kGroups / 2)) + 1] = both.y;
      }
    }
  }
};

template <typename F>
__device__ __forceinline__ void ReadParameters(uint32_t at, uint32_t slots, uint32_t slot,
                                               Lane lane, float (&x)[2][F::kGroups]) {
  ParameterWords<F> words;
  words.Read(at, slots, slot, lane);
  words.Widen(x);
}

// q8_0's signed codes, plus 128.
template <typename F>
__device__ __forceinline__ uint32_t Unsigned(uint32_t word) {
  return F::kGgml ? word ^ 0x80808080u : word;
}

// --- queries ---

// Which channels a product takes together is decided by the words of K. A lane has quads of
// neighbouring channels: this is the first channel of quad j.
template <typename F>
__device__ __forceinline__ uint32_t QuadChannel(uint32_t j, uint32_t i) {
  if constexpr (!F::kTiled) return 64 * (j / 4) + 16 * i + 4 * (j % 4);
  return F::kKeyBits == 8 ? 16 * j + 4 * i : 32 * (j / 2) + 8 * i + 4 * (j % 2);
}
// Which element of the lane's quads is (b register, half) of step `step`: 4 * quad + place.
template <typename F>
__device__ __forceinline__ constexpr uint32_t QuadElement(uint32_t step, uint32_t b,
                                                          uint32_t half) {
  if (F::kKeyBits == 8) return 4 * step + 2 * b + half;
  if (F::kTiled) return 4 * (step / 2 * 2 + b) + 2 * half + step % 2;
  return 4 * (step / 4 * 4 + step % 4 / 2 * 2 + half) + 2 * (step % 2) + b;
}

__device__ __forceinline__ float4 ReadQuad(uint8_t dtype, const uint8_t* from) {
  if (dtype == kF32) return *reinterpret_cast<const float4*>(from);
  const uint2 w = *reinterpret_cast<const uint2*>(from);
  if (dtype == kBf16) {
    return make_float4(__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xFFFF0000u),
                       __uint_as_float(w.y << 16), __uint_as_float(w.y & 0xFFFF0000u));
  }
  const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&w.x));
  const float2 y = __half22float2(*reinterpret_cast<const __half2*>(&w.y));
  return make_float4(x.x, x.y, y.x, y.y);
}

template <typename F>
struct Queries {
  uint32_t step[F::kSteps][2];
  float scale[2];            // of the sums of columns 2i, 2i + 1
  float sum[F::kGroups][2];  // of the queries, times that scale
};

template <typename F>
__device__ __forceinline__ void ReadQueries(const AttendArguments& a, const Segment& segment,
                                            Lane lane, Queries<F>& q) {
  const bool exists = lane.g < ColumnsOf(a, segment);
  const uint8_t* from = HeadAt(a, a.queries, segment, exists ? lane.g : 0);
  const auto dtype = static_cast<uint8_t>(a.queries.dtype);
  const uint32_t element = dtype == kF32 ? 4 : 2;
  float x[4 * F::kSteps];
  float largest = 0;
#pragma unroll
  for (uint32_t j = 0; j < F::kSteps; ++j) {
    const float4 quad = ReadQuad(dtype, from + QuadChannel<F>(j, lane.i) * element);
    const float four[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      x[4 * j + k] = exists ? four[k] : 0.f;
      largest = fmaxf(largest, fabsf(x[4 * j + k]));
    }
  }
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
  // A power of 2 near the largest element; its exponent stays inside float's.
  const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 27u), 227u);
  const float power = __uint_as_float(exponent << 23),
              inverse = __uint_as_float((254 - exponent) << 23);
  const float low = F::kKeyBits == 4 ? 16 * inverse : inverse;
#pragma unroll
  for (uint32_t step = 0; step < F::kSteps; ++step) {
    q.step[step][0] =
        Halves(x[QuadElement<F>(step, 0, 0)] * low, x[QuadElement<F>(step, 0, 1)] * low);
    q.step[step][1] =
        Halves(x[QuadElement<F>(step, 1, 0)] * inverse, x[QuadElement<F>(step, 1, 1)] * inverse);
  }
  // Column g's factor is in lanes of g; a lane's scores are of columns 2i and 2i + 1.
  const float scale = power * a.scale * kLog2E;
  q.scale[0] = __shfl_sync(~0u, scale, 8 * lane.i);
  q.scale[1] = __shfl_sync(~0u, scale, 8 * lane.i + 4);
  // Sums of the queries as they are multiplied: a product with ones (with 1/16 where they are
  // times 16).
  const uint32_t one = 0x3C003C00u, sixteenth = 0x2C002C00u;
  const uint32_t first = F::kKeyBits == 4 ? sixteenth : one;
  const Fragment ones = {{first, first}, {one, one}};
#pragma unroll
  for (uint32_t group = 0; group < F::kGroups; ++group) {
    float sum[4] = {};
#pragma unroll
    for (uint32_t k = 0; k < F::kGroup / 16; ++k) {
      const uint32_t step = group * (F::kGroup / 16) + k;
      Multiply(sum, ones, q.step[step][0], q.step[step][1]);
    }
    q.sum[group][0] = sum[0] * q.scale[0];
    q.sum[group][1] = sum[1] * q.scale[1];
  }
}

// --- scores ---

// Adds codes . q of the 16 slots from `slot`, for each group.
template <typename F>
__device__ __forceinline__ void MultiplyTiledKeys(const StageUnit& key, uint32_t slot, Lane lane,
                                                  const Queries<F>& q,
                                                  float (&dot)[F::kGroups][4]) {
  constexpr uint32_t kStepsOfGroup = F::kGroup / 16;
  const uint32_t first = slot & ~(kTileSlots - 1), tile = min(kTileSlots, key.slots - first);
  const uint32_t at = key.codes + first * F::kKeyRow + 4 * (slot % kTileSlots + 2 * lane.g);
  if constexpr (F::kKeyBits == 8) {
#pragma unroll
    for (uint32_t step = 0; step < F::kSteps; ++step) {
      const uint2 w = Load64(at + (4 * step + lane.i) * tile * 4);
      const uint32_t x = Unsigned<F>(w.x), y = Unsigned<F>(w.y);
      const Fragment a = {{Bytes(x, 0, kBytes01), Bytes(y, 0, kBytes01)},
                          {Bytes(x, 0, kBytes23), Bytes(y, 0, kBytes23)}};
      Multiply(dot[step / kStepsOfGroup], a, q.step[step][0], q.step[step][1]);
    }
  } else {
#pragma unroll
    for (uint32_t step = 0; step < F::kSteps; step += 2) {
      const uint2 w = Load64(at + (2 * step + lane.i) * tile * 4);
#pragma unroll
      for (uint32_t odd = 0; odd < 2; ++odd) {
        const uint32_t x = w.x >> (8 * odd), y = w.y >> (8 * odd);
        const Fragment a = {{x & kLowNibbles, y & kLowNibbles},
                            {x & kHighNibbles, y & kHighNibbles}};
        Multiply(dot[step / kStepsOfGroup], a, q.step[step + odd][0], q.step[step + odd][1]);
      }
    }
  }
}

template <typename F>
__device__ __forceinline__ void MultiplyRowKeys(const StageUnit& key, uint32_t slot, Lane lane,
                                                const Queries<F>& q, float (&dot)[F::kGroups][4]) {
  const uint2 mine = SlotsOf<F>(slot, lane);
  const uint32_t row_x = key.codes + mine.x * F::kKeyRow, row_y = key.codes + mine.y * F::kKeyRow;
#pragma unroll
  for (uint32_t part = 0; part < F::kDim / 64; ++part) {
    float(&sum)[4] = dot[64 * part / F::kGroup];
    if constexpr (F::kKeyBits == 8) {
      const uint4 a = Load128(row_x + 64 * part + 16 * lane.i);
      const uint4 b = Load128(row_y + 64 * part + 16 * lane.i);
      const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const Fragment f = {{Bytes(x[j], 0, kBytes01), Bytes(y[j], 0, kBytes01)},
                            {Bytes(x[j], 0, kBytes23), Bytes(y[j], 0, kBytes23)}};
        Multiply(sum, f, q.step[4 * part + j][0], q.step[4 * part + j][1]);
      }
    } else {
      const uint2 a = Load64(row_x + 32 * part + 8 * lane.i);
      const uint2 b = Load64(row_y + 32 * part + 8 * lane.i);
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t x = (j < 2 ? a.x : a.y) >> (j % 2 * 8);
        const uint32_t y = (j < 2 ? b.x : b.y) >> (j % 2 * 8);
        const Fragment f = {{x & kLowNibbles, y & kLowNibbles},
                            {x & kHighNibbles, y & kHighNibbles}};
        Multiply(sum, f, q.step[4 * part + j][0], q.step[4 * part + j][1]);
      }
    }
  }
}

// Scores of the 16 slots from `slot`: [slot of the lane's two][column of its two].
template <typename F>
__device__ __forceinline__ void Score(const StageUnit& key, uint32_t slot, Lane lane,
                                      const Queries<F>& q, float (&score)[2][2]) {
  constexpr float kFactor = F::kKeyBits == 8 ? kOfSubnormal : kOfHighNibble;
  float dot[F::kGroups][4] = {};
  if constexpr (F::kTiled) {
    MultiplyTiledKeys<F>(key, slot, lane, q, dot);
  } else {
    MultiplyRowKeys<F>(key, slot, lane, q, dot);
  }
  float scales[2][F::kGroups], biases[2][F::kGroups];
  ReadParameters<F>(key.scales, key.slots, slot, lane, scales);
  if (!F::kGgml) ReadParameters<F>(key.biases, key.slots, slot, lane, biases);
#pragma unroll
  for (uint32_t which = 0; which < 2; ++which) {
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      float sum = 0, shift = 0;
#pragma unroll
      for (uint32_t group = 0; group < F::kGroups; ++group) {
        const float scale = scales[which][group];
        const float bias =
            F::kGgml ? scale * (F::kKeyBits == 8 ? -128.f : -8.f) : biases[which][group];
        sum = fmaf(scale, dot[group][2 * which + c], sum);
        shift = fmaf(bias, q.sum[group][c], shift);
      }
      score[which][c] = fmaf(sum, kFactor * q.scale[c], shift);
    }
  }
}

// --- values ---

// The channel of row g (which = 0) or g + 8 of tile `tile` of group `group`.
template <typename F>
__device__ __forceinline__ uint32_t ValueChannel(uint32_t group, uint32_t tile, uint32_t g,
                                                 uint32_t which) {
  if constexpr (F::kTiled) {
    if (F::kValueBits == 8) return F::kGroup * group + g * (F::kGroup / 8) + 2 * tile + which;
    const uint32_t word = g * (F::kGroup / 16) + tile;
    return F::kGroup * group + 32 * (word / 16) + word % 16 + 16 * which;
  }
  return F::kGroup * group + 64 * (tile / 4) + 8 * g + 2 * (tile % 4) + which;
}

// Adds weights . codes of the 16 slots from `slot`, for one group of channels.
template <typename F>
__device__ __forceinline__ void MultiplyTiledValues(const StageUnit& value, uint32_t slot,
                                                    Lane lane, uint32_t group, uint32_t b0,
                                                    uint32_t b1, float (&sum)[F::kGroup / 16][4]) {
  constexpr uint32_t kWords = F::kGroup * F::kValueBits / 64;  // of a lane
  uint32_t w[kWords];
  const uint32_t quad = group * (value.slots / 4) + slot / 4 + lane.i;
  const uint32_t at =
      value.codes + 4 * quad * (F::kGroup * F::kValueBits / 8) + 4 * lane.g * kWords;
  if constexpr (kWords >= 4) {
#pragma unroll
    for (uint32_t k = 0; k < kWords; k += 4) {
      const uint4 four = Load128(at + 4 * k);
      w[k] = four.x, w[k + 1] = four.y, w[k + 2] = four.z, w[k + 3] = four.w;
    }
  } else {
    const uint2 two = Load64(at);
    w[0] = two.x, w[1] = two.y;
  }
#pragma unroll
  for (uint32_t tile = 0; tile < F::kGroup / 16; ++tile) {
    if constexpr (F::kValueBits == 4) {
      const uint32_t even = w[tile], odd = w[tile] >> 8;
      const Fragment a = {{even & kLowNibbles, even & kHighNibbles},
                          {odd & kLowNibbles, odd & kHighNibbles}};
      Multiply(sum[tile], a, b0, b1);
    } else {
      const uint32_t x = Unsigned<F>(w[2 * tile]), y = Unsigned<F>(w[2 * tile + 1]);
      const Fragment a = {{Bytes(x, 0, kBytes02), Bytes(y, 0, kBytes02)},
                          {Bytes(x, 0, kBytes13), Bytes(y, 0, kBytes13)}};
      Multiply(sum[tile], a, b0, b1);
    }
  }
}

template <typename F>
__device__ __forceinline__ void MultiplyRowValues(const StageUnit& value, uint32_t slot, Lane lane,
                                                  uint32_t group, uint32_t b0, uint32_t b1,
                                                  float (&sum)[F::kGroup / 16][4]) {
  // Tokens i and i + 4 are a pair, i + 8 and i + 12 the other.
  const uint32_t row = value.codes + (slot + lane.i) * F::kValueRow;
#pragma unroll
  for (uint32_t part = 0; part < F::kGroup / 64; ++part) {
    const uint32_t channel = F::kGroup * group + 64 * part + 8 * lane.g;
    if constexpr (F::kValueBits == 4) {
      uint32_t x[4];
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) x[k] = Load32(row + 4 * k * F::kValueRow + channel / 2);
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t which = j < 2 ? 0x5410 : 0x7632;
        const uint32_t low = Bytes(x[0], x[1], which) >> (j % 2 * 8);
        const uint32_t high = Bytes(x[2], x[3], which) >> (j % 2 * 8);
        const Fragment a = {{low & kLowNibbles, low & kHighNibbles},
                            {high & kLowNibbles, high & kHighNibbles}};
        Multiply(sum[4 * part + j], a, b0, b1);
      }
    } else {
      uint2 x[4];
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) x[k] = Load64(row + 4 * k * F::kValueRow + channel);
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t which = j % 2 == 0 ? 0x5410 : 0x7632;
        const uint32_t low = j < 2 ? Bytes(x[0].x, x[1].x, which) : Bytes(x[0].y, x[1].y, which);
        const uint32_t high = j < 2 ? Bytes(x[2].x, x[3].x, which) : Bytes(x[2].y, x[3].y, which);
        const Fragment a = {{Bytes(low, 0, kBytes02), Bytes(low, 0, kBytes13)},
                            {Bytes(high, 0, kBytes02), Bytes(high, 0, kBytes13)}};
        Multiply(sum[4 * part + j], a, b0, b1);
      }
    }
  }
}

// --- a page ---

// What a warp has of its columns so far. Weights are 2^(score - Base()): at most 2^6, less the
// exponent of the largest V scale, so that weight * scale is a normal half.
template <typename F>
struct Sums {
  float value[F::kGroups][F::kGroup / 16][4];  // of weight * code
  float bias[F::kGroups][2];                   // of weight * bias, of the lane's own slots
  float largest[2], total[2];                  // total: of the lane's own slots
  int exponent;                                // of the largest V scale so far

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (uint32_t group = 0; group < F::kGroups; ++group) {
#pragma unroll
      for (uint32_t tile = 0; tile < F::kGroup / 16; ++tile) {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) value[group][tile][k] = 0;
      }
      bias[group][0] = bias[group][1] = 0;
    }
    largest[0] = largest[1] = kNoScore;
    total[0] = total[1] = 0;
    exponent = kLeastExponent;
  }
  __device__ __forceinline__ float Base(uint32_t c) const {
    return largest[c] - kWeightRoom + static_cast<float>(exponent);
  }

  static constexpr int kLeastExponent = -60;
};

inline constexpr uint32_t kSixteens = 4;  // 16 slots each, that one step takes

struct StepSlots {
  uint32_t first = 0;  // slot
  uint32_t count = 0;  // slots in use from there, at most 64
};

// Takes what a column may not see out of the scores.
template <typename F>
__device__ __forceinline__ void Mask(const AttendArguments& a, const Segment& segment,
                                     uint32_t first_position, const StepSlots& slots, Lane lane,
                                     float (&score)[kSixteens][2][2]) {
#pragma unroll
  for (uint32_t c = 0; c < 2; ++c) {
    const uint32_t column = min(2 * lane.i + c, ColumnsOf(a, segment) - 1);
    const uint32_t row = segment.first_position + RowOf(a, segment, column);
#pragma unroll
    for (uint32_t t = 0; t < kSixteens; ++t) {
      const uint2 mine = SlotsOf<F>(16 * t, lane);
      if (mine.x >= slots.count || !Sees(a, row, first_position + mine.x)) {
        score[t][0][c] = -INFINITY;
      }
      if (mine.y >= slots.count || !Sees(a, row, first_position + mine.y)) {
        score[t][1][c] = -INFINITY;
      }
    }
  }
}

// The exponent of the largest scale of words, over the warp.
template <typename F>
__device__ __forceinline__ int LargestExponent(const ParameterWords<F> (&words)[kSixteens]) {
  uint32_t largest = 0;
#pragma unroll
  for (uint32_t t = 0; t < kSixteens; ++t) {
#pragma unroll
    for (uint32_t k = 0; k < ParameterWords<F>::kWords; ++k) {
      largest = __vmaxu2(largest, words[t].word[k] & 0x7FFF7FFFu);
    }
  }
  const uint32_t bits = __reduce_max_sync(~0u, max(largest & 0xFFFF, largest >> 16));
  const float scale = PairOf<F>(bits).x;
  const int exponent = static_cast<int>(__float_as_uint(scale) >> 23) - 127;
  return min(max(exponent, Sums<F>::kLeastExponent), 60);
}

// One step: at most 64 slots of a page. kWhole: it is 64, every column sees them all, and scores
// have no soft-cap; then nothing below is a branch.
template <typename F, bool kWhole>
__device__ __forceinline__ void Step(const AttendArguments& a, const Segment& segment,
                                     uint32_t first_position, const StageUnit& key,
                                     const StageUnit& value, const StepSlots& slots, Lane lane,
                                     const Queries<F>& q, Sums<F>& sums) {
  float score[kSixteens][2][2];
#pragma unroll
  for (uint32_t t = 0; t < kSixteens; ++t) {
    if (kWhole || 16 * t < slots.count) {
      Score<F>(key, slots.first + 16 * t, lane, q, score[t]);
    } else {
      score[t][0][0] = score[t][0][1] = score[t][1][0] = score[t][1][1] = -INFINITY;
    }
  }
  ParameterWords<F> scale_words[kSixteens];
#pragma unroll
  for (uint32_t t = 0; t < kSixteens; ++t) {
    if (kWhole || 16 * t < slots.count) {
      scale_words[t].Read(value.scales, value.slots, slots.first + 16 * t, lane);
    }
    if (!kWhole) {
      const uint2 mine = SlotsOf<F>(16 * t, lane);
      scale_words[t].Keep(mine.x < slots.count, mine.y < slots.count);
    }
  }
  if (!kWhole) {
    if (a.soft_cap != 0) {
#pragma unroll
      for (uint32_t t = 0; t < kSixteens; ++t) {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
          score[t][k / 2][k % 2] = SoftCapped(score[t][k / 2][k % 2], a.soft_cap);
        }
      }
    }
    Mask<F>(a, segment, first_position, slots, lane, score);
  }
  const float old_base[2] = {sums.Base(0), sums.Base(1)};
  sums.exponent = max(sums.exponent, LargestExponent<F>(scale_words));
  float kept[2], base[2];
#pragma unroll
  for (uint32_t c = 0; c < 2; ++c) {
    float largest = sums.largest[c];
#pragma unroll
    for (uint32_t t = 0; t < kSixteens; ++t) {
      largest = fmaxf(largest, fmaxf(score[t][0][c], score[t][1][c]));
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 4));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 8));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 16));
    sums.largest[c] = largest;
    base[c] = sums.Base(c);
    kept[c] = Exp2(old_base[c] - base[c]);
    sums.total[c] *= kept[c];
#pragma unroll
    for (uint32_t group = 0; group < F::kGroups; ++group) sums.bias[group][c] *= kept[c];
  }
  // A step is summed by itself and then added: what tensor cores cut off does not pile up.
  float fresh[F::kGroups][F::kGroup / 16][4] = {};
#pragma unroll
  for (uint32_t t = 0; t < kSixteens; ++t) {
    if (!kWhole && 16 * t >= slots.count) break;
    float weight[2][2];
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      weight[0][c] = Exp2(score[t][0][c] - base[c]);
      weight[1][c] = Exp2(score[t][1][c] - base[c]);
      sums.total[c] += weight[0][c] + weight[1][c];
    }
    float scales[2][F::kGroups], biases[2][F::kGroups];
    const uint32_t slot = slots.first + 16 * t;
    ParameterWords<F> bias_words = {};
    if (!F::kGgml) bias_words.Read(value.biases, value.slots, slot, lane);
    if (!kWhole) {
      // Beyond the slots in use, and in tokens that nobody sees, there may be anything: times a
      // weight of 0 it must be 0.
      const bool first = weight[0][0] != 0 || weight[0][1] != 0;
      const bool second = weight[1][0] != 0 || weight[1][1] != 0;
      scale_words[t].Keep(first, second);
      bias_words.Keep(first, second);
    }
    scale_words[t].Widen(scales);
    if (!F::kGgml) bias_words.Widen(biases);
#pragma unroll
    for (uint32_t group = 0; group < F::kGroups; ++group) {
      float b[2][2];
#pragma unroll
      for (uint32_t which = 0; which < 2; ++which) {
        const float scale = scales[which][group];
        const float bias =
            F::kGgml ? scale * (F::kValueBits == 8 ? -128.f : -8.f) : biases[which][group];
#pragma unroll
        for (uint32_t c = 0; c < 2; ++c) {
          sums.bias[group][c] = fmaf(weight[which][c], bias, sums.bias[group][c]);
          b[which][c] = weight[which][c] * scale;
        }
      }
      const uint32_t b0 = Transposed(Halves(b[0][0], b[0][1]));
      const uint32_t b1 = Transposed(Halves(b[1][0], b[1][1]));
      if constexpr (F::kTiled) {
        MultiplyTiledValues<F>(value, slot, lane, group, b0, b1, fresh[group]);
      } else {
        MultiplyRowValues<F>(value, slot, lane, group, b0, b1, fresh[group]);
      }
    }
  }
#pragma unroll
  for (uint32_t group = 0; group < F::kGroups; ++group) {
#pragma unroll
    for (uint32_t tile = 0; tile < F::kGroup / 16; ++tile) {
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        sums.value[group][tile][k] =
            fmaf(sums.value[group][tile][k], kept[k % 2], fresh[group][tile][k]);
      }
    }
  }
}

// --- the kernel ---

// The pages of one thread block's items that a warp takes, in order: it loads a few ahead of what
// it computes, into the next item too.
struct Cursor {
  uint32_t item = 0, page = 0, end = 0, kv_head = 0;
  bool valid = false;
};

// Where the parts of a unit of this format lie.
template <typename F>
struct FastPlaces {
  uint32_t slots, key_scales, key_biases, key_bytes, value_scales, value_biases, value_bytes;

  __device__ __forceinline__ explicit FastPlaces(uint32_t page_tokens) {
    constexpr uint32_t kBiasRow = F::kGgml ? 0 : F::kParameterRow;
    slots = F::kTiled ? (page_tokens + 15) / 16 * 16 : page_tokens;
    key_scales = slots * F::kKeyRow;
    key_biases = key_scales + slots * F::kParameterRow;
    key_bytes = Aligned(key_biases + slots * kBiasRow);
    value_scales = slots * F::kValueRow;
    value_biases = value_scales + slots * F::kParameterRow;
    value_bytes = Aligned(value_biases + slots * kBiasRow);
  }
  static __device__ __forceinline__ uint32_t Aligned(uint32_t bytes) {
    return (bytes + kUnitAlignment - 1) & ~(kUnitAlignment - 1);
  }
};

template <typename F>
__global__ void __launch_bounds__(256, 1)
    FastKernel(const __grid_constant__ AttendArguments a, uint32_t stages, uint32_t stage_bytes) {
  extern __shared__ __align__(128) uint8_t memory[];
  const uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  const Lane lane = {lane_id / 4, lane_id % 4};
  constexpr uint32_t kBufferFloats = 4 * F::kDim;  // of four columns
  float* buffers = reinterpret_cast<float*>(memory + warps * stages * stage_bytes);
  const uint32_t buffer_floats = SumFloats(warps, a.query_rows * a.group, F::kDim);
  float2* warp_weights = reinterpret_cast<float2*>(buffers + buffer_floats);  // [warp][8]
  float2* weights = warp_weights + warps * kColumns;                          // [8]
  uint64_t* all_barriers = reinterpret_cast<uint64_t*>(weights + kColumns);
  uint32_t* flag = reinterpret_cast<uint32_t*>(all_barriers + warps * stages);
  const uint32_t ring = SharedAddress(memory) + warp * stages * stage_bytes;
  const uint32_t barriers = SharedAddress(all_barriers + warp * stages);

  LetNextStart();
  if (lane_id == 0) PrepareStages(barriers, stages);
  __syncwarp();
  const uint32_t last_item = a.work.firsts[blockIdx.x + 1];
  Cursor ahead;
  ahead.item = a.work.firsts[blockIdx.x];
  const auto enter = [&](uint32_t item) {
    const WorkItem it = a.work.items[item];
    ahead.page = it.begin + warp;
    ahead.end = it.end;
    ahead.kv_head = it.kv_head;
  };
  const auto settle = [&] {
    while (ahead.page >= ahead.end && ++ahead.item < last_item) enter(ahead.item);
    ahead.valid = ahead.item < last_item;
  };
  if (ahead.item < last_item) {
    enter(ahead.item);
    settle();
  }
  uint32_t in_flight = 0, fill = 0;
  const auto pump = [&] {
    while (ahead.valid && in_flight < stages) {
      const DevicePage page = a.pages[ahead.page];
      const FastPlaces<F> places(page.page_tokens);
      const uint8_t* units = page.units + size_t{a.layer} * page.layer_bytes;
      StartStage(ring + fill * stage_bytes, units + ahead.kv_head * places.key_bytes,
                 places.key_bytes,
                 units + a.kv_heads * places.key_bytes + ahead.kv_head * places.value_bytes,
                 places.value_bytes, barriers + 8 * fill, lane_id);
      fill = fill + 1 == stages ? 0 : fill + 1;
      ++in_flight;
      ahead.page += warps;
      settle();
    }
  };
  pump();
  // Pages and the work list do not depend on kernels before; queries, parts and results do.
  uint32_t i = a.work.firsts[blockIdx.x];
  WorkItem item;
  Segment segment;
  if (i < last_item) {
    item = a.work.items[i];
    segment = a.segments[item.segment];
  }
  WaitForPrevious();

  uint32_t take = 0, phases = 0;
  while (i < last_item) {
    Queries<F> q;
    ReadQueries<F>(a, segment, lane, q);
    Sums<F> sums;
    sums.Clear();
    for (uint32_t at = item.begin + warp; at < item.end; at += warps) {
      const DevicePage page = a.pages[at];
      const FastPlaces<F> places(page.page_tokens);
      const uint32_t stage = ring + take * stage_bytes, behind = stage + places.key_bytes;
      const StageUnit key = {stage, stage + places.key_scales, stage + places.key_biases,
                             places.slots};
      const StageUnit value = {behind, behind + places.value_scales, behind + places.value_biases,
                               places.slots};
      const bool whole = a.soft_cap == 0 && AllSee(a, segment, page, places.slots);
      WaitStage(barriers + 8 * take, phases >> take & 1, in_flight);
      for (uint32_t first = 0; first < page.tokens; first += 16 * kSixteens) {
        const StepSlots slots = {first, min(page.tokens - first, 16 * kSixteens)};
        if (whole && slots.count == 16 * kSixteens) {
          Step<F, true>(a, segment, page.first + first, key, value, slots, lane, q, sums);
        } else {
          Step<F, false>(a, segment, page.first + first, key, value, slots, lane, q, sums);
        }
      }
      __syncwarp();
      --in_flight;
      pump();
      phases ^= 1u << take;
      take = take + 1 == stages ? 0 : take + 1;
    }
    // The warps' sums come together in shared memory.
#pragma unroll
    for (uint32_t step = 4; step <= 16; step *= 2) {
#pragma unroll
      for (uint32_t c = 0; c < 2; ++c) {
        sums.total[c] += __shfl_xor_sync(~0u, sums.total[c], step);
#pragma unroll
        for (uint32_t group = 0; group < F::kGroups; ++group) {
          sums.bias[group][c] += __shfl_xor_sync(~0u, sums.bias[group][c], step);
        }
      }
    }
    if (lane.g == 0) {
      for (uint32_t c = 0; c < 2; ++c) {
        warp_weights[warp * kColumns + 2 * lane.i + c] = make_float2(sums.Base(c), sums.total[c]);
      }
    }
    __syncthreads();
    float factor[2];
    for (uint32_t c = 0; c < 2; ++c) {
      float largest = kNoScore;
      for (uint32_t w = 0; w < warps; ++w) {
        largest = fmaxf(largest, warp_weights[w * kColumns + 2 * lane.i + c].x);
      }
      factor[c] = Exp2(sums.Base(c) - largest);
    }
    if (threadIdx.x < kColumns) {
      float largest = kNoScore, total = 0;
      for (uint32_t w = 0; w < warps; ++w) {
        largest = fmaxf(largest, warp_weights[w * kColumns + threadIdx.x].x);
      }
      for (uint32_t w = 0; w < warps; ++w) {
        const float2 of_warp = warp_weights[w * kColumns + threadIdx.x];
        total = fmaf(Exp2(of_warp.x - largest), of_warp.y, total);
      }
      weights[threadIdx.x] = make_float2(largest, total);
    }
    // Up to four columns each warp has a buffer, else two warps share one.
    const uint32_t columns = ColumnsOf(a, segment);
    const uint32_t rounds = columns <= 4 || warps == 1 ? 1 : 2;
    const uint32_t used = (warps + rounds - 1) / rounds;
    const uint32_t stride = rounds * kBufferFloats;
    float* mine = buffers + warp % used * stride;
    for (uint32_t round = 0; round < rounds; ++round) {
      if (warp / used == round) {
#pragma unroll
        for (uint32_t group = 0; group < F::kGroups; ++group) {
#pragma unroll
          for (uint32_t tile = 0; tile < F::kGroup / 16; ++tile) {
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
              const uint32_t column = 2 * lane.i + k % 2;
              if (column >= columns) continue;
              const float of_code = k / 2 == 0 || F::kValueBits == 8 ? kOfSubnormal : kOfHighNibble;
              const float x = factor[k % 2] *
                              fmaf(sums.value[group][tile][k], of_code, sums.bias[group][k % 2]);
              float* to = mine + column * F::kDim + ValueChannel<F>(group, tile, lane.g, k / 2);
              *to = round == 0 ? x : *to + x;
            }
          }
        }
      }
      if (round + 1 < rounds) __syncthreads();
    }
    FinishItem(a, item, segment, buffers, used, stride, weights, flag);
    if (++i < last_item) {
      item = a.work.items[i];
      segment = a.segments[item.segment];
    }
  }
}

}  // namespace prefixd::cuda
