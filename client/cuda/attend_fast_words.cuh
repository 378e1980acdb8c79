// What a warp of the fast kernels multiplies (attend_fast.cuh): formats, words of a page as
// fragments of tensor cores, parameters, queries.
#pragma once
#include <cstdint>

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
  // How many neighbouring channels a lane's sums hold one after the other.
  static constexpr uint32_t kNeighbours = kTiled && kValueBits == 4 && kGroup < 64 ? 2 : 4;
  // Whether the list's entry of a page is loaded before a stage is free for the page. This is 1 to
  // 3 % faster on an H200, except for 8-bit keys in rows, where it is 2 to 4 % slower.
  static constexpr bool kAsksEarly = kTiled || kKeyBits < 8;
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

// The lane's quads of its column's row, as they lie in memory.
template <typename F>
struct QueryWords {
  uint32_t word[4 * F::kSteps];  // the first half of them if elements have 16 bits

  // Asks for them: what arrives later is not waited for here.
  __device__ __forceinline__ void Ask(const AttendArguments& a, const Segment& segment, Lane lane) {
    const uint8_t* from =
        HeadAt(a, a.queries, segment, lane.g < ColumnsOf(a, segment) ? lane.g : 0);
    if (a.queries.dtype == kF32) {
#pragma unroll
      for (uint32_t j = 0; j < F::kSteps; ++j) {
        const uint4 quad = *reinterpret_cast<const uint4*>(from + 4 * QuadChannel<F>(j, lane.i));
        word[4 * j] = quad.x, word[4 * j + 1] = quad.y;
        word[4 * j + 2] = quad.z, word[4 * j + 3] = quad.w;
      }
    } else {
#pragma unroll
      for (uint32_t j = 0; j < F::kSteps; ++j) {
        const uint2 quad = *reinterpret_cast<const uint2*>(from + 2 * QuadChannel<F>(j, lane.i));
        word[2 * j] = quad.x, word[2 * j + 1] = quad.y;
      }
    }
  }
  __device__ __forceinline__ void Widen(uint32_t dtype, float (&x)[4 * F::kSteps]) const {
    if (dtype == kF32) {
#pragma unroll
      for (uint32_t k = 0; k < 4 * F::kSteps; ++k) x[k] = __uint_as_float(word[k]);
      return;
    }
#pragma unroll
    for (uint32_t k = 0; k < 2 * F::kSteps; ++k) {
      const float2 halves = __half22float2(*reinterpret_cast<const __half2*>(&word[k]));
      x[2 * k] = dtype == kBf16 ? __uint_as_float(word[k] << 16) : halves.x;
      x[2 * k + 1] = dtype == kBf16 ? __uint_as_float(word[k] & 0xFFFF0000u) : halves.y;
    }
  }
};

template <typename F>
struct Queries {
  uint32_t step[F::kSteps][2];
  float scale[2];            // of the sums of columns 2i, 2i + 1
  float sum[F::kGroups][2];  // of the queries, times that scale
};

template <typename F>
__device__ __forceinline__ void MakeQueries(const AttendArguments& a, const Segment& segment,
                                            Lane lane, const QueryWords<F>& words, Queries<F>& q) {
  const bool exists = lane.g < ColumnsOf(a, segment);
  float x[4 * F::kSteps], largest = 0;
  words.Widen(a.queries.dtype, x);
#pragma unroll
  for (uint32_t k = 0; k < 4 * F::kSteps; ++k) {
    if (!exists) x[k] = 0;
    largest = fmaxf(largest, fabsf(x[k]));
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

}  // namespace prefixd::cuda
