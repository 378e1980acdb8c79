// What both attention kernels share: reading queries, which positions a column sees, and how the
// parts of a result come together.
//
// Scores are in log2: score * scale * log2(e), so weights are powers of 2.
#pragma once
#include <cstdint>

#include "attend_arguments.h"
#include "octets.cuh"

namespace prefixd::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;
// Less than any score; finite, so that differences of two are numbers.
inline constexpr float kNoScore = -1e30f;

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// How many of a segment's kColumns columns there are.
__device__ __forceinline__ uint32_t ColumnsOf(const AttendArguments& a, const Segment& segment) {
  return min(kColumns, a.query_rows * a.group - segment.column);
}

__device__ __forceinline__ uint32_t RowOf(const AttendArguments& a, const Segment& segment,
                                          uint32_t column) {
  return (segment.column + column) / a.group;
}

__device__ __forceinline__ uint32_t HeadOf(const AttendArguments& a, const Segment& segment,
                                           uint32_t column) {
  return segment.kv_head * a.group + (segment.column + column) % a.group;
}

// Address of element 0 of a column.
__device__ __forceinline__ uint8_t* HeadAt(const AttendArguments& a, const HeadsPlace& place,
                                           const Segment& segment, uint32_t column) {
  const int64_t at = segment.sequence * place.sequence_stride +
                     RowOf(a, segment, column) * place.row_stride +
                     HeadOf(a, segment, column) * place.head_stride;
  return static_cast<uint8_t*>(place.data) + at * (place.dtype == kF32 ? 4 : 2);
}

__device__ __forceinline__ bool Sees(const AttendArguments& a, uint32_t row_position,
                                     uint32_t position) {
  if (position > row_position) return false;
  return a.window == 0 || row_position - position < a.window || position < a.sink_tokens;
}

// Returns true if every row of the call sees every slot of the page.
__device__ __forceinline__ bool AllSee(const AttendArguments& a, const Segment& segment,
                                       const DevicePage& page, uint32_t slots) {
  if (page.tokens != slots || page.first + page.tokens > segment.first_position + 1) return false;
  return a.window == 0 || segment.first_position + a.query_rows - page.first <= a.window;
}

__device__ __forceinline__ float SoftCapped(float score, float soft_cap) {
  const float cap = soft_cap * kLog2E;
  return cap * tanhf(score / cap);
}

__device__ __forceinline__ void PutResult(const AttendArguments& a, const Segment& segment,
                                          uint32_t column, uint32_t channel, float x) {
  uint8_t* to = HeadAt(a, a.results, segment, column);
  if (a.results.dtype == kF32) {
    reinterpret_cast<float*>(to)[channel] = x;
  } else {
    reinterpret_cast<uint16_t*>(to)[channel] =
        static_cast<uint16_t>(BitsOf(static_cast<uint8_t>(a.results.dtype), x));
  }
}

// Adds the learned score of a token without a value, and returns what the sums are divided by.
__device__ __forceinline__ float2 WithSink(const AttendArguments& a, const Segment& segment,
                                           uint32_t column, float2 weight) {
  if (a.sink_logits == nullptr) return weight;
  const float sink = a.sink_logits[HeadOf(a, segment, column)] * kLog2E;
  const float largest = fmaxf(weight.x, fmaxf(sink, kNoScore));
  return {largest, weight.y * Exp2(weight.x - largest) + Exp2(sink - largest)};
}

// The last block of a segment merges all parts, in their order.
__device__ __forceinline__ void MergeParts(const AttendArguments& a, const Segment& segment,
                                           uint32_t columns) {
  constexpr uint32_t kAtOnce = 8;
  for (uint32_t e = threadIdx.x; e < columns * a.value_dim; e += blockDim.x) {
    const uint32_t column = e / a.value_dim;
    const float* sums = a.part_sums + size_t{segment.part} * kColumns * a.value_dim + e;
    const float2* weights = a.part_weights + size_t{segment.part} * kColumns + column;
    float largest = kNoScore, total = 0, sum = 0;
    for (uint32_t part = 0; part < segment.parts; part += kAtOnce) {
      float2 weight[kAtOnce];
      float value[kAtOnce];
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        const uint32_t at = min(part + k, segment.parts - 1);
        weight[k] = __ldcg(weights + size_t{at} * kColumns);
        value[k] = __ldcg(sums + size_t{at} * kColumns * a.value_dim);
        if (part + k >= segment.parts) weight[k] = make_float2(kNoScore, 0), value[k] = 0;
      }
      float next = largest;
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) next = fmaxf(next, weight[k].x);
      const float kept = Exp2(largest - next);
      total *= kept;
      sum *= kept;
      largest = next;
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        const float factor = Exp2(weight[k].x - next);
        total = fmaf(factor, weight[k].y, total);
        sum = fmaf(factor, value[k], sum);
      }
    }
    const float2 all = WithSink(a, segment, column, make_float2(largest, total));
    PutResult(a, segment, column, e % a.value_dim, sum * Exp2(largest - all.x) / all.y);
  }
}

// Ends an item: the block's sums are those of `buffers` arrays [column][value_dim], `stride` floats
// apart in shared memory, and weights are [column]. Writes the result if the item is the whole
// segment, else its part; the last block to arrive merges. Called by all threads; begins with a
// barrier and ends with one. flag: a word of shared memory.
__device__ __forceinline__ void FinishItem(const AttendArguments& a, const WorkItem& item,
                                           const Segment& segment, const float* sums,
                                           uint32_t buffers, uint32_t stride, const float2* weights,
                                           uint32_t* flag) {
  __syncthreads();
  const uint32_t columns = ColumnsOf(a, segment);
  const bool whole = segment.parts == 1;
  for (uint32_t e = threadIdx.x; e < columns * a.value_dim; e += blockDim.x) {
    const uint32_t column = e / a.value_dim;
    float sum = sums[e];
    for (uint32_t b = 1; b < buffers; ++b) sum += sums[b * stride + e];
    if (whole) {
      const float2 all = WithSink(a, segment, column, weights[column]);
      PutResult(a, segment, column, e % a.value_dim, sum * Exp2(weights[column].x - all.x) / all.y);
    } else {
      a.part_sums[size_t{item.part} * kColumns * a.value_dim + e] = sum;
    }
  }
  if (whole) {
    __syncthreads();
    return;
  }
  if (threadIdx.x < columns) {
    a.part_weights[size_t{item.part} * kColumns + threadIdx.x] = weights[threadIdx.x];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    const uint32_t before = atomicAdd(a.arrived + item.segment, 1u);
    __threadfence();
    *flag = before + 1 == segment.parts ? 1 : 0;
    if (*flag != 0) a.arrived[item.segment] = 0;
  }
  __syncthreads();
  if (*flag != 0) MergeParts(a, segment, columns);
  __syncthreads();
}

}  // namespace prefixd::cuda
