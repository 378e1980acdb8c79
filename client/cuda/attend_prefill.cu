// Attention of many query rows on Hopper: a thread block has 128 columns of one kv head, and walks
// tiles of 64 tokens.
//
// How it computes
//  - One warp copies the pages' codes to a ring in shared memory; one warpgroup turns them into
//    f16 elements, in a second ring; two warpgroups multiply there by wgmma, 64 columns each, sums
//    in float. What is not codes in rows, or is of heads beyond 128, was expanded to tiles before
//    (attend_tiles.cu), which are copied to the second ring.
//  - The next tile's scores are computed while this tile's values are added.
//  - Weights are powers of 2 of scores less a reference, which is raised only when weights become
//    large: most tiles need no largest score, and no sum is rescaled.
//  - Elements that f16 does not hold well enough set a word, and the call is computed again by the
//    generic kernel, which looks at that word.
#include "attend_common.cuh"
#include "attend_prefill.cuh"
#include "attend_prefill_pages.cuh"

namespace prefixd::cuda {
namespace {

template <typename H>
struct Consumer {
  uint32_t query[H::kSmall ? H::kSteps : 1][4];
  uint32_t queries = 0;  // in shared memory, if they are not in registers
  float factor[2];       // of the scores of rows g and g + 8, in log2
  uint32_t place[2];     // positions of these rows
  float reference[2], total[2];
  uint32_t first_place, last_place;  // of the warpgroup's columns
};

// Sums of one column's quads of lanes.
__device__ __forceinline__ float OfQuad(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float LargestOfQuad(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Two neighbouring channels.
__device__ __forceinline__ float2 PairAt(const HeadsPlace& place, const uint8_t* from,
                                         uint32_t channel) {
  if (place.dtype == kF32) return *reinterpret_cast<const float2*>(from + 4 * channel);
  const uint32_t bits = *reinterpret_cast<const uint32_t*>(from + 2 * channel);
  const auto dtype = static_cast<uint8_t>(place.dtype);
  return {FloatOfBits(dtype, bits & 0xFFFF), FloatOfBits(dtype, bits >> 16)};
}
__device__ __forceinline__ void PutPair(const HeadsPlace& place, uint8_t* to, uint32_t channel,
                                        float low, float high) {
  if (place.dtype == kF32) {
    *reinterpret_cast<float2*>(to + 4 * channel) = make_float2(low, high);
  } else {
    const auto dtype = static_cast<uint8_t>(place.dtype);
    *reinterpret_cast<uint32_t*>(to + 2 * channel) = BitsOf(dtype, low) | BitsOf(dtype, high) << 16;
  }
}

// Writes channels 16 step + 8 k + 2 i and the next of a row of the warpgroup.
__device__ __forceinline__ void WriteQuery(uint32_t queries, uint32_t row, uint32_t step,
                                           uint32_t k, uint32_t i, uint32_t pair) {
  const uint32_t at = TileRow{queries + row * 128, row % 8}.AddressOf(2 * step + k) + 4 * i;
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(pair) : "memory");
}

// A query is divided by a power of 2 near its largest element, so that f16 holds it.
template <typename H>
__device__ __forceinline__ void ReadQuery(const AttendArguments& a, const Segment& segment,
                                          uint32_t column, uint32_t which, Consumer<H>& c) {
  constexpr uint32_t kSteps = H::kSteps;
  const uint32_t lane = threadIdx.x % 32, i = lane % 4;
  const uint32_t columns = a.query_rows * a.group - segment.column;
  const bool exists = column < columns;
  if (!exists) column = columns - 1;
  c.place[which] = segment.first_position + RowOf(a, segment, column);
  const uint8_t* from = HeadAt(a, a.queries, segment, column);
  float2 x[kSteps][2];
  float largest = 0;
#pragma unroll
  for (uint32_t step = 0; step < kSteps; ++step) {
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t channel = 16 * step + 8 * k + 2 * i;
      x[step][k] =
          exists && channel < a.key_dim ? PairAt(a.queries, from, channel) : make_float2(0, 0);
      largest = fmaxf(largest, fmaxf(fabsf(x[step][k].x), fabsf(x[step][k].y)));
    }
  }
  largest = LargestOfQuad(largest);
  const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 27u), 227u);
  const float inverse = __uint_as_float((254 - exponent) << 23);
  const float sign = a.scale < 0 ? -inverse : inverse;
#pragma unroll
  for (uint32_t step = 0; step < kSteps; ++step) {
    const uint32_t low = Halves(x[step][0].x * sign, x[step][0].y * sign);
    const uint32_t high = Halves(x[step][1].x * sign, x[step][1].y * sign);
    if constexpr (H::kSmall) {
      c.query[step][which] = low;
      c.query[step][which + 2] = high;
    } else {
      const uint32_t row = threadIdx.x % kWarpgroup / 32 * 16 + lane / 4 + 8 * which;
      WriteQuery(c.queries, row, step, 0, i, low);
      WriteQuery(c.queries, row, step, 1, i, high);
    }
  }
  c.factor[which] = __uint_as_float(exponent << 23) * fabsf(a.scale) * kLog2E;
  c.reference[which] = kNoScore;
  c.total[which] = 0;
}

template <typename H>
__device__ __forceinline__ void Scores(const Consumer<H>& c, uint32_t key, float (&s)[32]) {
  const uint32_t first = DescribeTile(key, 1);
  const uint32_t queries = H::kSmall ? 0 : DescribeTile(c.queries, 1);
#pragma unroll
  for (uint32_t step = 0; step < H::kSteps; ++step) {
    const uint32_t further = step / 4 * (kPartBytes / 16) + step % 4 * 2;
    if constexpr (H::kSmall) {
      MultiplyKeys(s, c.query[step], Descriptor(first + further), step > 0);
    } else {
      MultiplyKeys(s, Descriptor(queries + further), Descriptor(first + further), step > 0);
    }
  }
}

template <uint32_t kResults>
__device__ __forceinline__ void AddValues(const uint32_t (&p)[4][4], uint32_t value,
                                          float (&o)[kResults]) {
  const uint32_t first = DescribeTile(value, kPartBytes / 16);
#pragma unroll
  for (uint32_t step = 0; step < 4; ++step) {
    MultiplyValues(o, p[step], Descriptor(first + step * 128));
  }
}

// Score times factor is in log2; tanh(x) is 1 - 2 / (1 + e^2x), whose error is one of scores, not
// of their size.
template <typename H>
__device__ __forceinline__ void CapScores(float soft_cap, const Consumer<H>& c, float (&s)[32]) {
  const float cap = soft_cap * kLog2E;
  const float factor[2] = {c.factor[0] * (2 * kLog2E / cap), c.factor[1] * (2 * kLog2E / cap)};
  const float back[2] = {__fdividef(cap, c.factor[0]), __fdividef(cap, c.factor[1])};
#pragma unroll
  for (uint32_t k = 0; k < 32; ++k) {
    const uint32_t row = k / 2 % 2;
    const float power = fminf(Exp2(s[k] * factor[row]), 1e30f);
    s[k] = back[row] * (1 - __fdividef(2, 1 + power));
  }
}

// Takes out the tokens of a tile that a row does not see: of a window it sees [low, high) and what
// is before `sinks`.
template <typename H>
__device__ __forceinline__ void HideTokens(const AttendArguments& a, const Tile& tile,
                                           const Consumer<H>& c, float (&s)[32]) {
  const int position = static_cast<int>(tile.position), count = static_cast<int>(tile.count);
  const int sinks = a.window == 0 ? count : static_cast<int>(a.sink_tokens) - position;
  int low[2], high[2];
#pragma unroll
  for (uint32_t row = 0; row < 2; ++row) {
    const int behind = static_cast<int>(c.place[row]) - position;
    high[row] = min(count, behind + 1);
    low[row] = behind + 1 - static_cast<int>(min(a.window, 0x3FFFFFFFu));
  }
#pragma unroll
  for (uint32_t k = 0; k < 32; ++k) {
    const int token = static_cast<int>(k / 4 * 8 + threadIdx.x % 4 * 2 + k % 2);
    const uint32_t row = k / 2 % 2;
    const bool seen = token < high[row] && (token >= low[row] || token < sinks);
    if (!seen) s[k] = -INFINITY;
  }
}

// Weights of scores as f16, and the sums of this thread's.
template <typename H>
__device__ __forceinline__ void Powers(const Consumer<H>& c, const float (&s)[32],
                                       uint32_t (&p)[4][4], float (&sum)[2]) {
  float odd[2] = {};
  sum[0] = sum[1] = 0;
#pragma unroll
  for (uint32_t k = 0; k < 16; ++k) {
    const uint32_t row = k % 2;
    const float x = Exp2(fmaf(s[2 * k], c.factor[row], -c.reference[row]));
    const float y = Exp2(fmaf(s[2 * k + 1], c.factor[row], -c.reference[row]));
    sum[row] += x;
    odd[row] += y;
    p[k / 4][k % 4] = Halves(x, y);
  }
  sum[0] += odd[0];
  sum[1] += odd[1];
}

// Raises references to the largest scores. Returns what the sums so far are multiplied by in
// `kept`.
template <typename H>
__device__ __forceinline__ void RaiseReference(const float (&s)[32], Consumer<H>& c,
                                               float (&kept)[2]) {
#pragma unroll
  for (uint32_t row = 0; row < 2; ++row) {
    float largest = s[2 * row];
#pragma unroll
    for (uint32_t n = 0; n < 8; ++n) {
      largest = fmaxf(largest, fmaxf(s[4 * n + 2 * row], s[4 * n + 2 * row + 1]));
    }
    const float raised = LargestOfQuad(largest) * c.factor[row] - kLargestWeight;
    const float reference = fmaxf(c.reference[row], raised);
    kept[row] = Exp2(c.reference[row] - reference);
    c.reference[row] = reference;
  }
}

// Scores become weights. Returns true if the sums so far are to be multiplied by `kept`.
template <typename H>
__device__ __forceinline__ bool Weigh(const AttendArguments& a, const Tile& tile, Consumer<H>& c,
                                      float (&s)[32], uint32_t (&p)[4][4], float (&kept)[2]) {
  if (a.soft_cap != 0) CapScores(a.soft_cap, c, s);
  const bool whole = tile.count == kTileTokens &&
                     tile.position + kTileTokens <= c.first_place + 1 &&
                     (a.window == 0 || c.last_place - tile.position < a.window);
  if (!whole) HideTokens(a, tile, c, s);
  float sum[2];
  Powers(c, s, p, sum);
  const bool raised = !__all_sync(~0u, sum[0] <= kMostSum && sum[1] <= kMostSum);
  if (raised) {
    RaiseReference(s, c, kept);
    Powers(c, s, p, sum);
    c.total[0] *= kept[0];
    c.total[1] *= kept[1];
  }
  c.total[0] += sum[0];
  c.total[1] += sum[1];
  return raised;
}

// Adds all parts of the segment in their order, each thread its own elements.
template <typename H>
__device__ __forceinline__ void Merge(const AttendArguments& a, const Segment& segment,
                                      uint32_t column, uint32_t thread, Consumer<H>& c,
                                      float (&o)[H::kResults]) {
  c.reference[0] = c.reference[1] = kNoScore;
  c.total[0] = c.total[1] = 0;
  for (float& x : o) x = 0;
  for (uint32_t part = segment.part; part < segment.part + segment.parts; ++part) {
    float kept[2], factor[2];
#pragma unroll
    for (uint32_t row = 0; row < 2; ++row) {
      const float2 w = __ldcg(a.part_weights + size_t{part} * kPrefillColumns + column + 8 * row);
      const float largest = fmaxf(c.reference[row], w.x);
      kept[row] = Exp2(c.reference[row] - largest);
      factor[row] = Exp2(w.x - largest);
      c.total[row] = c.total[row] * kept[row] + w.y * factor[row];
      c.reference[row] = largest;
    }
    const float4* from =
        reinterpret_cast<const float4*>(a.part_sums) + size_t{part} * (H::kDim / 8) * 256;
#pragma unroll
    for (uint32_t n = 0; n < H::kDim / 8; ++n) {
      const float4 x = __ldcg(from + n * 256 + thread);
      o[4 * n] = o[4 * n] * kept[0] + x.x * factor[0];
      o[4 * n + 1] = o[4 * n + 1] * kept[0] + x.y * factor[0];
      o[4 * n + 2] = o[4 * n + 2] * kept[1] + x.z * factor[1];
      o[4 * n + 3] = o[4 * n + 3] * kept[1] + x.w * factor[1];
    }
  }
}

// Writes the result, or the part, which the last block of the segment merges.
template <typename H>
__device__ __forceinline__ void Finish(const AttendArguments& a, const WorkItem& item,
                                       const Segment& segment, uint32_t* flag, Consumer<H>& c,
                                       float (&o)[H::kResults]) {
  const uint32_t thread = threadIdx.x - H::kProducers, lane = thread % 32;
  const uint32_t column = thread / 32 * 16 + lane / 4;
  c.total[0] = OfQuad(c.total[0]);
  c.total[1] = OfQuad(c.total[1]);
  if (segment.parts > 1) {
    float4* to = reinterpret_cast<float4*>(a.part_sums) + size_t{item.part} * (H::kDim / 8) * 256;
#pragma unroll
    for (uint32_t n = 0; n < H::kDim / 8; ++n) {
      to[n * 256 + thread] = make_float4(o[4 * n], o[4 * n + 1], o[4 * n + 2], o[4 * n + 3]);
    }
    if (lane % 4 == 0) {
      float2* weights = a.part_weights + size_t{item.part} * kPrefillColumns;
      weights[column] = make_float2(c.reference[0], c.total[0]);
      weights[column + 8] = make_float2(c.reference[1], c.total[1]);
    }
    __threadfence();
    ConsumersMeet();
    if (thread == 0) {
      const uint32_t before = atomicAdd(a.arrived + item.segment, 1u);
      __threadfence();
      *flag = before + 1 == segment.parts ? 1 : 0;
      if (*flag != 0) a.arrived[item.segment] = 0;
    }
    ConsumersMeet();
    const bool last = *flag != 0;
    ConsumersMeet();
    if (!last) return;
    Merge(a, segment, column, thread, c, o);
  }
#pragma unroll
  for (uint32_t row = 0; row < 2; ++row) {
    const uint32_t mine = column + 8 * row;
    if (segment.column + mine >= a.query_rows * a.group) continue;
    const float2 all = WithSink(a, segment, mine, make_float2(c.reference[row], c.total[row]));
    const float by = Exp2(c.reference[row] - all.x) / all.y;
    uint8_t* to = HeadAt(a, a.results, segment, mine);
#pragma unroll
    for (uint32_t n = 0; n < H::kDim / 8; ++n) {
      const uint32_t channel = 8 * n + lane % 4 * 2;
      if (channel < a.value_dim) {
        PutPair(a.results, to, channel, o[4 * n + 2 * row] * by, o[4 * n + 2 * row + 1] * by);
      }
    }
  }
}

// The tiles of an item, up to the end's, which is left.
template <typename H>
__device__ __forceinline__ void AddTiles(const AttendArguments& a, const PrefillShared<H>& shared,
                                         const Rings<H>& rings, Place<H::kStages>& at,
                                         Consumer<H>& c, float (&o)[H::kResults]) {
  float s[32], kept[2];
  uint32_t p[4][4];
  // A product reads p until it has ended, so the next weights stay in other registers and are
  // copied to p then. The copy adds a 0 that the compiler does not know: else it writes the weights
  // to p at once, and lets every product wait for the one before.
  const uint32_t zero = threadIdx.z;
  const auto wait = [&](uint32_t side, const Place<H::kStages>& of) {
    WaitForPhase(rings.TileFull(of.stage, side), of.parity);
  };
  wait(kKey, at);
  Tile tile = shared.tile[at.stage];
  if (tile.count == 0) return;
  Fence(s);
  WgmmaFence();
  Scores(c, rings.Key(at.stage), s);
  WgmmaCommit();
  WgmmaWait<0>();
  Fence(s);
  ArriveOnce(rings.TileEmpty(at.stage, kKey));
  Weigh(a, tile, c, s, p, kept);
  wait(kValue, at);
  Place<H::kStages> next = at;
  next.Step();
  wait(kKey, next);
  tile = shared.tile[next.stage];
  while (tile.count != 0) {
    Fence(s);
    Fence(o);
    WgmmaFence();
    Scores(c, rings.Key(next.stage), s);
    WgmmaCommit();
    AddValues(p, rings.Value(at.stage), o);
    WgmmaCommit();
    WgmmaWait<1>();
    Fence(s);
    ArriveOnce(rings.TileEmpty(next.stage, kKey));
    // The next step's tiles are mostly there: one look now costs less than to wait later.
    Place<H::kStages> third = next;
    third.Step();
    const bool has_value = HasEnded(rings.TileFull(next.stage, kValue), next.parity);
    const bool has_key = HasEnded(rings.TileFull(third.stage, kKey), third.parity);
    Tile coming = {};
    if (has_key) coming = shared.tile[third.stage];
    uint32_t weights[4][4];
    const bool raised = Weigh(a, tile, c, s, weights, kept);
    WgmmaWait<0>();
    Fence(o);
    ArriveOnce(rings.TileEmpty(at.stage, kValue));
    if (raised) {
#pragma unroll
      for (uint32_t k = 0; k < H::kResults; ++k) o[k] *= kept[k / 2 % 2];
    }
#pragma unroll
    for (uint32_t k = 0; k < 16; ++k) p[k / 4][k % 4] = weights[k / 4][k % 4] | zero;
    if (!has_value) wait(kValue, next);
    if (!has_key) {
      wait(kKey, third);
      coming = shared.tile[third.stage];
    }
    at = next;
    next = third;
    tile = coming;
  }
  Fence(o);
  WgmmaFence();
  AddValues(p, rings.Value(at.stage), o);
  WgmmaCommit();
  WgmmaWait<0>();
  Fence(o);
  ArriveOnce(rings.TileEmpty(at.stage, kValue));
  at = next;
}

template <typename H>
__device__ __forceinline__ void Consume(const AttendArguments& a, PrefillShared<H>& shared) {
  const uint32_t thread = threadIdx.x - H::kProducers, lane = thread % 32;
  const Rings<H> rings(&shared);
  Place<H::kStages> at;
  const uint32_t end = a.work.firsts[blockIdx.x + 1];
  for (uint32_t it = a.work.firsts[blockIdx.x]; it < end; ++it) {
    const WorkItem item = a.work.items[it];
    const Segment segment = a.segments[item.segment];
    Consumer<H> c;
    const uint32_t column = thread / 32 * 16 + lane / 4;
    if constexpr (!H::kSmall) {
      c.queries = rings.Queries(thread / kWarpgroup);
      GroupMeets(thread / kWarpgroup);  // nobody reads the last item's
    }
    ReadQuery(a, segment, column, 0, c);
    ReadQuery(a, segment, column + 8, 1, c);
    if constexpr (!H::kSmall) {
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      GroupMeets(thread / kWarpgroup);
    }
    const uint32_t last = a.query_rows * a.group - 1 - segment.column, first = thread / 128 * 64;
    c.first_place = segment.first_position + RowOf(a, segment, min(first, last));
    c.last_place = segment.first_position + RowOf(a, segment, min(first + 63, last));
    float o[H::kResults];
#pragma unroll
    for (uint32_t k = 0; k < H::kResults; ++k) o[k] = 0;
    AddTiles(a, shared, rings, at, c, o);
    WaitForPhase(rings.TileFull(at.stage, kValue), at.parity);
    ArriveOnce(rings.TileEmpty(at.stage, kKey));
    ArriveOnce(rings.TileEmpty(at.stage, kValue));
    at.Step();
    Finish(a, item, segment, &shared.flag, c, o);
  }
}

template <typename H>
__device__ __forceinline__ void PrepareBarriers(const PrefillShared<H>& shared) {
  const Rings<H> rings(&shared);
  for (uint32_t stage = 0; stage < H::kStages; ++stage) {
    for (const uint32_t side : {kKey, kValue}) {
      InitBarrier(rings.TileFull(stage, side), H::kSmall ? kTileTokens / 32 : 1);
      InitBarrier(rings.TileEmpty(stage, side), kConsumers / 32);
    }
  }
  for (uint32_t stage = 0; stage < kUnitStages; ++stage) {
    InitBarrier(rings.UnitFull(stage), 1);
    InitBarrier(rings.UnitEmpty(stage), kWarpgroup / 32);
  }
  PublishBarriers();
}

template <uint32_t kRegisters>
__device__ __forceinline__ void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <typename H>
__global__ void __launch_bounds__(H::kThreads, 1)
    PrefillKernel(const __grid_constant__ AttendArguments a) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<PrefillShared<H>*>(memory);
  if (threadIdx.x == 0) PrepareBarriers(shared);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    ReleaseRegisters<H::kLoaderRegisters>();
    if (threadIdx.x < 32) LoadTiles(a, shared);
  } else if (threadIdx.x < H::kProducers) {
    ReleaseRegisters<H::kExpanderRegisters>();
    if constexpr (H::kSmall) ExpandTiles(a, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(H::kConsumerRegisters));
    Consume(a, shared);
  }
}

template <typename H>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(PrefillKernel<H>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              sizeof(PrefillShared<H>));
}
template <typename H>
void Launch(const AttendArguments& a, cudaStream_t stream) {
  PrefillKernel<H><<<a.work.blocks, H::kThreads, sizeof(PrefillShared<H>), stream>>>(a);
}

}  // namespace

cudaError_t PreparePrefill() {
  const cudaError_t error = Prepare<Heads<128>>();
  return error != cudaSuccess ? error : Prepare<Heads<kMaxDim>>();
}

cudaError_t QueuePrefill(const AttendArguments& a, cudaStream_t stream) {
  if (PrefillDim(a.key_dim, a.value_dim) == 128) {
    Launch<Heads<128>>(a, stream);
  } else {
    Launch<Heads<kMaxDim>>(a, stream);
  }
  return cudaGetLastError();
}

}  // namespace prefixd::cuda
