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
#include "attend_fast_page.cuh"

namespace prefixd::cuda {

// --- the warps' sums come together ---

// Of a thread block's warps, for each column. A warp that is not there has no score and no weight.
struct WarpWeights {
  float bases[kColumns][kMostWarps];  // Sums::Base()
  float totals[kColumns][kMostWarps];
};

__device__ __forceinline__ void ReadWarps(const float (&of_warps)[kMostWarps],
                                          float (&x)[kMostWarps]) {
#pragma unroll
  for (uint32_t w = 0; w < kMostWarps; w += 4) {
    const float4 four = *reinterpret_cast<const float4*>(of_warps + w);
    x[w] = four.x, x[w + 1] = four.y, x[w + 2] = four.z, x[w + 3] = four.w;
  }
}

__device__ __forceinline__ float LargestBase(const WarpWeights& warps, uint32_t column) {
  float bases[kMostWarps], largest = kNoScore;
  ReadWarps(warps.bases[column], bases);
#pragma unroll
  for (uint32_t w = 0; w < kMostWarps; ++w) largest = fmaxf(largest, bases[w]);
  return largest;
}

// The weight of a column over all warps: the largest base, and the total beside it.
__device__ __forceinline__ float2 WeightOf(const WarpWeights& warps, uint32_t column) {
  const float largest = LargestBase(warps, column);
  float bases[kMostWarps], totals[kMostWarps], total = 0;
  ReadWarps(warps.bases[column], bases);
  ReadWarps(warps.totals[column], totals);
#pragma unroll
  for (uint32_t w = 0; w < kMostWarps; ++w) {
    total = fmaf(Exp2(bases[w] - largest), totals[w], total);
  }
  return {largest, total};
}

// Writes a warp's sums times `factor`, or adds them: [column][channel].
template <typename F, bool kAdd>
__device__ __forceinline__ void PutSums(const Sums<F>& sums, const float (&factor)[2],
                                        uint32_t columns, Lane lane, float* to) {
  constexpr uint32_t kTiles = F::kGroup / 16, kWidth = F::kNeighbours;
  constexpr bool kSameRow = F::kTiled && F::kValueBits == 4;  // neighbours are rows g of tiles
#pragma unroll
  for (uint32_t c = 0; c < 2; ++c) {
    const uint32_t column = 2 * lane.i + c;
    if (column >= columns) break;
#pragma unroll
    for (uint32_t n = 0; n < F::kDim / 8; n += kWidth) {
      const uint32_t group = n / (2 * kTiles), first = n % (2 * kTiles);
      float x[kWidth];
#pragma unroll
      for (uint32_t k = 0; k < kWidth; ++k) {
        const uint32_t which = kSameRow ? first / kTiles : k % 2;
        const uint32_t tile = kSameRow ? first % kTiles + k : (first + k) / 2;
        const float of_code = which == 0 || F::kValueBits == 8 ? kOfSubnormal : kOfHighNibble;
        x[k] =
            factor[c] * fmaf(sums.value[group][tile][2 * which + c], of_code, sums.bias[group][c]);
      }
      const uint32_t tile = kSameRow ? first % kTiles : first / 2;
      float* at = to + column * F::kDim +
                  ValueChannel<F>(group, tile, lane.g, kSameRow ? first / kTiles : 0);
      if constexpr (kWidth == 4) {
        float4 all = make_float4(x[0], x[1], x[2], x[3]);
        if (kAdd) all = Added(all, 1, *reinterpret_cast<const float4*>(at));
        *reinterpret_cast<float4*>(at) = all;
      } else {
        float2 all = make_float2(x[0], x[1]);
        if (kAdd) all = make_float2(all.x + at[0], all.y + at[1]);
        *reinterpret_cast<float2*>(at) = all;
      }
    }
  }
}

// What the warps' sums need in shared memory.
struct Together {
  WarpWeights* warps;
  float2* weights;  // [kColumns], over all warps
  float* buffers;   // [column][channel] each
};
struct Buffers {
  uint32_t count, stride;  // floats
};

// Brings the sums of a thread block's warps together: what is returned has to be added. Called by
// all threads; a barrier follows.
template <typename F>
__device__ __forceinline__ Buffers BringTogether(Sums<F>& sums, uint32_t columns, Lane lane,
                                                 const Together& to) {
  const uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32;
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
      to.warps->bases[2 * lane.i + c][warp] = sums.Base(c);
      to.warps->totals[2 * lane.i + c][warp] = sums.total[c];
    }
  }
  __syncthreads();
  float factor[2];
#pragma unroll
  for (uint32_t c = 0; c < 2; ++c) {
    factor[c] = Exp2(sums.Base(c) - LargestBase(*to.warps, 2 * lane.i + c));
  }
  if (threadIdx.x < kColumns) to.weights[threadIdx.x] = WeightOf(*to.warps, threadIdx.x);
  // Up to four columns each warp has a buffer, else two warps share one.
  const uint32_t rounds = columns <= 4 || warps == 1 ? 1 : 2;
  const Buffers used = {(warps + rounds - 1) / rounds, rounds * 4 * F::kDim};
  if (warp < used.count) {
    PutSums<F, false>(sums, factor, columns, lane, to.buffers + warp * used.stride);
  }
  if (rounds == 2) {
    __syncthreads();
    if (warp >= used.count) {
      float* const shared = to.buffers + (warp - used.count) * used.stride;
      PutSums<F, true>(sums, factor, columns, lane, shared);
    }
  }
  return used;
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
  Together together;
  together.buffers = reinterpret_cast<float*>(memory + warps * stages * stage_bytes);
  together.warps = reinterpret_cast<WarpWeights*>(
      together.buffers + SumFloats(warps, a.query_rows * a.group, F::kDim));
  together.weights = reinterpret_cast<float2*>(together.warps + 1);
  uint64_t* all_barriers = reinterpret_cast<uint64_t*>(together.weights + kColumns);
  uint32_t* flag = reinterpret_cast<uint32_t*>(all_barriers + warps * stages);
  const uint32_t ring = SharedAddress(memory) + warp * stages * stage_bytes;
  const uint32_t barriers = SharedAddress(all_barriers + warp * stages);

  LetNextStart();
  if (lane_id == 0) PrepareStages(barriers, stages);
  if (warps < kMostWarps && threadIdx.x < kColumns) {
#pragma unroll 1
    for (uint32_t w = warps; w < kMostWarps; ++w) {
      together.warps->bases[threadIdx.x][w] = kNoScore;
      together.warps->totals[threadIdx.x][w] = 0;
    }
  }
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
  DevicePage coming;
  if (F::kAsksEarly && ahead.valid) coming = a.pages[ahead.page];
  const auto pump = [&] {
    while (ahead.valid && in_flight < stages) {
      const DevicePage page = F::kAsksEarly ? coming : a.pages[ahead.page];
      const uint32_t kv_head = ahead.kv_head;
      ahead.page += warps;
      settle();
      if (F::kAsksEarly && ahead.valid) coming = a.pages[ahead.page];
      const FastPlaces<F> places(page.page_tokens);
      const uint8_t* units = page.units + size_t{a.layer} * page.layer_bytes;
      StartStage(ring + fill * stage_bytes, units + kv_head * places.key_bytes, places.key_bytes,
                 units + a.kv_heads * places.key_bytes + kv_head * places.value_bytes,
                 places.value_bytes, barriers + 8 * fill, lane_id);
      fill = fill + 1 == stages ? 0 : fill + 1;
      ++in_flight;
    }
  };
  // Pages and the work list do not depend on kernels before; queries, parts and results do. A call
  // that waits for no kernel asks for its queries first: else they would arrive after the pages.
  uint32_t i = a.work.firsts[blockIdx.x];
  WorkItem item;
  Segment segment;
  QueryWords<F> words;
  if (i < last_item) {
    item = a.work.items[i];
    segment = a.segments[item.segment];
    if (!a.early) words.Ask(a, segment, lane);
  }
  pump();
  WaitForPrevious();
  if (a.early && i < last_item) words.Ask(a, segment, lane);

  uint32_t take = 0, phases = 0;
  while (i < last_item) {
    Queries<F> q;
    MakeQueries(a, segment, lane, words, q);
    Sums<F> sums;
    sums.Clear();
    DevicePage next;
    if (item.begin + warp < item.end) next = a.pages[item.begin + warp];
    for (uint32_t at = item.begin + warp; at < item.end; at += warps) {
      const DevicePage page = next;
      if (at + warps < item.end) next = a.pages[at + warps];
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
    const Buffers used = BringTogether(sums, ColumnsOf(a, segment), lane, together);
    FinishItem<F::kDim>(a, item, segment, together.buffers, used.count, used.stride,
                        together.weights, flag);
    if (++i < last_item) {
      item = a.work.items[i];
      segment = a.segments[item.segment];
      words.Ask(a, segment, lane);
    }
  }
}

}  // namespace prefixd::cuda
