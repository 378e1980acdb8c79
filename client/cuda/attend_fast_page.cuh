// How a warp of the fast kernels attends on a page (attend_fast.cuh): scores, values, and the sums
// that it keeps.
#pragma once
#include <cstdint>

#include "attend_fast_words.cuh"

namespace prefixd::cuda {

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

}  // namespace prefixd::cuda
