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

// Elements of a row of results: kDim where the kernel is for one size, 0 where it is for all.
template <uint32_t kDim>
__device__ __forceinline__ uint32_t ValueDim(const AttendArguments& a) {
  return kDim != 0 ? kDim : a.value_dim;
}

// The last block of a segment merges all parts, in their order: weights of kMergeParts parts at a
// time come to shared memory, then each thread takes four channels of a column. The whole call
// waits for this, and no cache of instructions has its code: it asks for memory at once and keeps
// loops short.
template <uint32_t kDim>
__device__ __forceinline__ void MergeParts(const AttendArguments& a, const Segment& segment,
                                           uint32_t columns, float2* weights) {
  constexpr uint32_t kAtOnce = 16;
  static_assert(kMergeParts % kAtOnce == 0);
  const uint32_t quads = ValueDim<kDim>(a) / 4;
  const uint32_t stride = kColumns * ValueDim<kDim>(a);  // of parts
#pragma unroll 1
  for (uint32_t begin = 0; begin < columns * quads; begin += blockDim.x) {
    const uint32_t e = begin + threadIdx.x;
    const bool mine = e < columns * quads;
    const uint32_t column = mine ? e / quads : 0, channel = mine ? e % quads * 4 : 0;
    const float* sums = a.part_sums + size_t{segment.part} * stride + column * 4 * quads + channel;
    float largest = kNoScore, total = 0;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (uint32_t first = 0; first < segment.parts; first += kMergeParts) {
      const uint32_t count = min(kMergeParts, segment.parts - first);
      float4 values[kAtOnce];
      const auto ask = [&](uint32_t from) {
        const float* at = sums + size_t{first + from} * stride;
#pragma unroll
        for (uint32_t j = 0; j < kAtOnce; ++j) {
          values[j] = mine && from + j < count
                          ? __ldcg(reinterpret_cast<const float4*>(at + j * stride))
                          : make_float4(0, 0, 0, 0);
        }
      };
      ask(0);
      const float2* from = a.part_weights + size_t{segment.part + first} * kColumns;
      const uint32_t filled = (count + kAtOnce - 1) / kAtOnce * kAtOnce;  // the last have no weight
#pragma unroll 1
      for (uint32_t i = threadIdx.x; i < filled * kColumns; i += blockDim.x) {
        weights[i] = i < count * kColumns ? __ldcg(from + i) : make_float2(kNoScore, 0);
      }
      __syncthreads();
      float next = largest;
#pragma unroll 4
      for (uint32_t k = 0; k < filled; ++k) next = fmaxf(next, weights[k * kColumns + column].x);
      const float kept = Exp2(largest - next);
      total *= kept;
      sum = Scaled(sum, kept);
      largest = next;
#pragma unroll 1
      for (uint32_t k = 0; k < count; k += kAtOnce) {
        if (k > 0) ask(k);
#pragma unroll
        for (uint32_t j = 0; j < kAtOnce; ++j) {
          const float2 weight = weights[(k + j) * kColumns + column];
          const float factor = Exp2(weight.x - largest);
          total = fmaf(factor, weight.y, total);
          sum = Added(sum, factor, values[j]);
        }
      }
      __syncthreads();
    }
    if (!mine) continue;
    const float2 all = WithSink(a, segment, column, make_float2(largest, total));
    PutResult(a, segment, column, channel, Scaled(sum, Exp2(largest - all.x) / all.y));
  }
}

// Adds 1 and returns what was there. What this block's threads wrote before a barrier is seen by
// the block that finds it counted, behind a barrier of its own.
__device__ __forceinline__ uint32_t Arrive(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

// Ends an item: the block's sums are those of `buffers` arrays [column][value_dim], `stride` floats
// apart in shared memory, and weights are [column]. Writes the result if the item is the whole
// segment, else its part; the last block to arrive merges. Called by all threads; begins with a
// barrier and ends with one. The sums have room for kMergeFloats, 16-byte aligned. flag: a word of
// shared memory.
template <uint32_t kDim>
__device__ __forceinline__ void FinishItem(const AttendArguments& a, const WorkItem& item,
                                           const Segment& segment, float* sums, uint32_t buffers,
                                           uint32_t stride, const float2* weights, uint32_t* flag) {
  __syncthreads();
  const uint32_t columns = ColumnsOf(a, segment);
  const uint32_t quads = ValueDim<kDim>(a) / 4;
  const bool whole = segment.parts == 1;
#pragma unroll 1
  for (uint32_t e = threadIdx.x; e < columns * quads; e += blockDim.x) {
    float4 sum = *reinterpret_cast<const float4*>(sums + 4 * e);
#pragma unroll 4
    for (uint32_t b = 1; b < buffers; ++b) {
      sum = Added(sum, 1, *reinterpret_cast<const float4*>(sums + b * stride + 4 * e));
    }
    if (whole) {
      const uint32_t column = e / quads;
      const float2 all = WithSink(a, segment, column, weights[column]);
      PutResult(a, segment, column, e % quads * 4,
                Scaled(sum, Exp2(weights[column].x - all.x) / all.y));
    } else {
      *reinterpret_cast<float4*>(a.part_sums + size_t{item.part} * kColumns * 4 * quads + 4 * e) =
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
    *flag = Arrive(a.arrived + item.segment) + 1 == segment.parts ? 1 : 0;
    if (*flag != 0) a.arrived[item.segment] = 0;
  }
  __syncthreads();
  if (*flag != 0) MergeParts<kDim>(a, segment, columns, reinterpret_cast<float2*>(sums));
  __syncthreads();
}

}  // namespace prefixd::cuda
