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

// Writes four neighbouring channels.
__device__ __forceinline__ void PutResult(const AttendArguments& a, const Segment& segment,
                                          uint32_t column, uint32_t channel, float4 x) {
  uint8_t* to = HeadAt(a, a.results, segment, column);
  if (a.results.dtype == kF32) {
    *reinterpret_cast<float4*>(to + 4 * channel) = x;
  } else {
    const auto dtype = static_cast<uint8_t>(a.results.dtype);
    *reinterpret_cast<uint2*>(to + 2 * channel) =
        make_uint2(BitsOf(dtype, x.x) | BitsOf(dtype, x.y) << 16,
                   BitsOf(dtype, x.z) | BitsOf(dtype, x.w) << 16);
  }
}

__device__ __forceinline__ float4 Scaled(float4 x, float by) {
  return make_float4(x.x * by, x.y * by, x.z * by, x.w * by);
}
__device__ __forceinline__ float4 Added(float4 x, float by, float4 y) {
  return make_float4(fmaf(by, y.x, x.x), fmaf(by, y.y, x.y), fmaf(by, y.z, x.z),
                     fmaf(by, y.w, x.w));
}

// Adds the learned score of a token without a value, and returns what the sums are divided by.
__device__ __forceinline__ float2 WithSink(const AttendArguments& a, const Segment& segment,
                                           uint32_t column, float2 weight) {
  if (a.sink_logits == nullptr) return weight;
  const float sink = a.sink_logits[HeadOf(a, segment, column)] * kLog2E;
  const float largest = fmaxf(weight.x, fmaxf(sink, kNoScore));
  return {largest, weight.y * Exp2(weight.x - largest) + Exp2(sink - largest)};
}

// The last block of a segment merges all parts, in their order: weights of kMergeParts parts at a
// time come to shared memory, then each thread takes four channels of a column. Memory is asked for
// as much as possible at once: the whole call waits for this.
__device__ __forceinline__ void MergeParts(const AttendArguments& a, const Segment& segment,
                                           uint32_t columns, float2* weights) {
  constexpr uint32_t kAtOnce = 12;
  const uint32_t quads = a.value_dim / 4;
  const uint32_t rounds = (columns * quads + blockDim.x - 1) / blockDim.x;
  const size_t stride = size_t{kColumns} * a.value_dim;
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint32_t e = threadIdx.x + round * blockDim.x;
    const bool mine = e < columns * quads;
    const uint32_t column = mine ? e / quads : 0, channel = mine ? e % quads * 4 : 0;
    const float* sums =
        a.part_sums + (size_t{segment.part} * kColumns + column) * a.value_dim + channel;
    float largest = kNoScore, total = 0;
    float4 sum = make_float4(0, 0, 0, 0);
    for (uint32_t first = 0; first < segment.parts; first += kMergeParts) {
      const uint32_t count = min(kMergeParts, segment.parts - first);
      float4 value[kAtOnce];
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce; ++j) {
        value[j] =
            __ldcg(reinterpret_cast<const float4*>(sums + (first + min(j, count - 1)) * stride));
      }
      const float2* from = a.part_weights + size_t{segment.part + first} * kColumns;
#pragma unroll 4
      for (uint32_t i = threadIdx.x; i < count * kColumns; i += blockDim.x) {
        weights[i] = __ldcg(from + i);
      }
      __syncthreads();
      float next = largest;
      for (uint32_t k = 0; k < count; ++k) next = fmaxf(next, weights[k * kColumns + column].x);
      const float kept = Exp2(largest - next);
      total *= kept;
      sum = Scaled(sum, kept);
      largest = next;
      for (uint32_t k = 0; k < count; k += kAtOnce) {
#pragma unroll
        for (uint32_t j = 0; j < kAtOnce; ++j) {
          if (k + j >= count) break;
          const float2 weight = weights[(k + j) * kColumns + column];
          const float factor = Exp2(weight.x - largest);
          total = fmaf(factor, weight.y, total);
          sum = Added(sum, factor, value[j]);
        }
        if (k + kAtOnce >= count) break;
#pragma unroll
        for (uint32_t j = 0; j < kAtOnce; ++j) {
          const uint32_t part = first + min(k + kAtOnce + j, count - 1);
          value[j] = __ldcg(reinterpret_cast<const float4*>(sums + part * stride));
        }
      }
      __syncthreads();
    }
    if (!mine) continue;
    const float2 all = WithSink(a, segment, column, make_float2(largest, total));
    PutResult(a, segment, column, channel, Scaled(sum, Exp2(largest - all.x) / all.y));
  }
}

// Ends an item: the block's sums are those of `buffers` arrays [column][value_dim], `stride` floats
// apart in shared memory, and weights are [column]. Writes the result if the item is the whole
// segment, else its part; the last block to arrive merges. Called by all threads; begins with a
// barrier and ends with one. The sums have room for kMergeFloats, 16-byte aligned. flag: a word of
// shared memory.
__device__ __forceinline__ void FinishItem(const AttendArguments& a, const WorkItem& item,
                                           const Segment& segment, float* sums, uint32_t buffers,
                                           uint32_t stride, const float2* weights, uint32_t* flag) {
  __syncthreads();
  const uint32_t columns = ColumnsOf(a, segment);
  const uint32_t quads = a.value_dim / 4;
  const bool whole = segment.parts == 1;
  for (uint32_t e = threadIdx.x; e < columns * quads; e += blockDim.x) {
    float4 sum = *reinterpret_cast<const float4*>(sums + 4 * e);
    for (uint32_t b = 1; b < buffers; ++b) {
      sum = Added(sum, 1, *reinterpret_cast<const float4*>(sums + b * stride + 4 * e));
    }
    if (whole) {
      const uint32_t column = e / quads;
      const float2 all = WithSink(a, segment, column, weights[column]);
      PutResult(a, segment, column, e % quads * 4,
                Scaled(sum, Exp2(weights[column].x - all.x) / all.y));
    } else {
      *reinterpret_cast<float4*>(a.part_sums + size_t{item.part} * kColumns * a.value_dim + 4 * e) =
          sum;
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
  if (*flag != 0) MergeParts(a, segment, columns, reinterpret_cast<float2*>(sums));
  __syncthreads();
}

}  // namespace prefixd::cuda
