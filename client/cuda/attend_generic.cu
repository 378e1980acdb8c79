// Attention over pages of any format: tiles of 32 tokens are widened to floats in shared memory and
// multiplied there. Where values are the keys' first elements, a tile is read once for both.
#include "attend_common.cuh"

namespace prefixd::cuda {
namespace {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kTile = 32;  // tokens

// What the kernel is compiled for.
struct Stored {
  static constexpr bool kLatent = false;
  static constexpr uint32_t kKeyDim = kMaxDim, kValueDim = kMaxDim;
};
struct Latent {
  static constexpr bool kLatent = true;
  static constexpr uint32_t kKeyDim = kMaxLatentDim, kValueDim = kMaxLatentValueDim;
};

template <uint32_t kMostDim>
struct Shared {
  float queries[kColumns][kMostDim];  // scaled
  float tile[kTile * (kMostDim + 4)];
  float weights[kColumns][kTile];  // scores, then weights
  float kept[kColumns];            // factor for the sums so far
  float2 total[kColumns];
  uint32_t flag;
};

template <uint32_t kMostDim>
__device__ void ReadQueries(const AttendArguments& a, const Segment& segment, Shared<kMostDim>& s) {
  const uint32_t columns = ColumnsOf(a, segment);
  const uint32_t octets = a.key_dim / kOctet;
  for (uint32_t i = threadIdx.x; i < kColumns * octets; i += kThreads) {
    const uint32_t column = i / octets, channel = i % octets * kOctet;
    float x[8] = {};
    if (column < columns) {
      const uint8_t* from = HeadAt(a, a.queries, segment, column);
      ReadElements(static_cast<uint8_t>(a.queries.dtype),
                   from + channel * (a.queries.dtype == kF32 ? 4 : 2), x);
    }
    for (int k = 0; k < 8; ++k) s.queries[column][channel + k] = x[k] * a.scale * kLog2E;
  }
}

// Slots [first, first + count) of a unit, as floats [slot][dim + 4].
__device__ void ReadTile(const TensorGeometry& t, const UnitPlaces& places, const uint8_t* unit,
                         uint32_t first, uint32_t count, float* tile) {
  const uint32_t octets = t.dim / kOctet, stride = t.dim + 4;
  for (uint32_t i = threadIdx.x; i < count * octets; i += kThreads) {
    const uint32_t slot = i / octets, channel = i % octets * kOctet;
    float x[8];
    ReadOctet<false>(t, places, unit, first + slot, channel, x);
    float4* to = reinterpret_cast<float4*>(tile + slot * stride + channel);
    to[0] = make_float4(x[0], x[1], x[2], x[3]);
    to[1] = make_float4(x[4], x[5], x[6], x[7]);
  }
}

// Scores of all columns: thread (slot, pair of columns).
template <uint32_t kMostDim>
__device__ void Score(const AttendArguments& a, const Segment& segment, uint32_t first_position,
                      uint32_t count, Shared<kMostDim>& s) {
  const uint32_t slot = threadIdx.x % kTile, stride = a.key_dim + 4;
  for (uint32_t column = threadIdx.x / kTile; column < kColumns; column += kThreads / kTile) {
    float score = -INFINITY;
    const uint32_t position = segment.first_position + RowOf(a, segment, column);
    if (slot < count && column < ColumnsOf(a, segment) &&
        Sees(a, position, first_position + slot)) {
      const float4* key = reinterpret_cast<const float4*>(s.tile + slot * stride);
      const float4* query = reinterpret_cast<const float4*>(s.queries[column]);
      float dot = 0;
      for (uint32_t c = 0; c < a.key_dim / 4; ++c) {
        const float4 k = key[c], q = query[c];
        dot = fmaf(k.x, q.x, fmaf(k.y, q.y, fmaf(k.z, q.z, fmaf(k.w, q.w, dot))));
      }
      score = a.soft_cap == 0 ? dot : SoftCapped(dot, a.soft_cap);
    }
    s.weights[column][slot] = score;
  }
}

// Turns scores into weights; a warp has two columns.
template <uint32_t kMostDim>
__device__ void Weigh(Shared<kMostDim>& s) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (uint32_t column = warp; column < kColumns; column += kThreads / 32) {
    const float score = s.weights[column][lane];
    float largest = score;
    for (uint32_t step = 16; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    }
    const float2 total = s.total[column];
    largest = fmaxf(largest, total.x);
    const float weight = Exp2(score - largest);
    float sum = weight;
    for (uint32_t step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    s.weights[column][lane] = weight;
    __syncwarp();
    if (lane == 0) {
      const float kept = Exp2(total.x - largest);
      s.kept[column] = kept;
      s.total[column] = make_float2(largest, fmaf(total.y, kept, sum));
    }
  }
}

// stride: floats of the tile's rows.
template <uint32_t kChannels, uint32_t kMostDim>
__device__ void AddValues(const AttendArguments& a, uint32_t count, uint32_t stride,
                          const Shared<kMostDim>& s, float (&sums)[kChannels][kColumns]) {
#pragma unroll
  for (uint32_t k = 0; k < kChannels; ++k) {
    const uint32_t channel = threadIdx.x + k * kThreads;
    if (channel >= a.value_dim) continue;
#pragma unroll
    for (uint32_t c = 0; c < kColumns; ++c) sums[k][c] *= s.kept[c];
    for (uint32_t slot = 0; slot < count; ++slot) {
      const float value = s.tile[slot * stride + channel];
#pragma unroll
      for (uint32_t c = 0; c < kColumns; ++c) {
        // A token that a column does not see has no part in it, whatever its bytes mean.
        const float weight = s.weights[c][slot];
        sums[k][c] = weight == 0 ? sums[k][c] : fmaf(weight, value, sums[k][c]);
      }
    }
  }
}

template <typename Kind, uint32_t kChannels>
__device__ void AttendPage(const AttendArguments& a, const Segment& segment, const DevicePage& page,
                           Shared<Kind::kKeyDim>& s, float (&sums)[kChannels][kColumns]) {
  const PairGeometry& pair = a.formats[page.format];
  const LayerPlaces layer = PlacesOf(pair, a.kv_heads, page.page_tokens);
  const uint8_t* units = page.units + size_t{a.layer} * page.layer_bytes;
  const uint8_t* key = units + size_t{segment.kv_head} * layer.key.bytes;
  const uint8_t* value =
      units + size_t{a.kv_heads} * layer.key.bytes + size_t{segment.kv_head} * layer.value.bytes;
  for (uint32_t first = 0; first < page.tokens; first += kTile) {
    const uint32_t count = min(kTile, page.tokens - first);
    __syncthreads();
    ReadTile(pair.key, layer.key, key, first, count, s.tile);
    __syncthreads();
    Score(a, segment, page.first + first, count, s);
    __syncthreads();
    Weigh(s);
    if constexpr (!Kind::kLatent) ReadTile(pair.value, layer.value, value, first, count, s.tile);
    __syncthreads();
    AddValues(a, count, (Kind::kLatent ? a.key_dim : a.value_dim) + 4, s, sums);
  }
}

template <typename Kind>
__global__ void __launch_bounds__(kThreads)
    GenericKernel(const __grid_constant__ AttendArguments a) {
  if (a.unfit != nullptr && *a.unfit == 0) return;
  constexpr uint32_t kChannels = Kind::kValueDim / kThreads;
  extern __shared__ __align__(16) uint8_t memory[];
  auto& s = *reinterpret_cast<Shared<Kind::kKeyDim>*>(memory);
  const uint32_t end = a.work.firsts[blockIdx.x + 1];
  for (uint32_t i = a.work.firsts[blockIdx.x]; i < end; ++i) {
    const WorkItem item = a.work.items[i];
    const Segment segment = a.segments[item.segment];
    ReadQueries(a, segment, s);
    if (threadIdx.x < kColumns) s.total[threadIdx.x] = make_float2(kNoScore, 0);
    float sums[kChannels][kColumns] = {};
    for (uint32_t at = item.begin; at < item.end; ++at) {
      AttendPage<Kind>(a, segment, a.pages[at], s, sums);
    }
    __syncthreads();
    // The tile is no longer needed: the sums go there, [column][value_dim].
#pragma unroll
    for (uint32_t k = 0; k < kChannels; ++k) {
      const uint32_t channel = threadIdx.x + k * kThreads;
      if (channel >= a.value_dim) continue;
#pragma unroll
      for (uint32_t c = 0; c < kColumns; ++c) s.tile[c * a.value_dim + channel] = sums[k][c];
    }
    FinishItem<0>(a, item, segment, s.tile, 1, 0, s.total, &s.flag);
  }
}

template <typename Kind>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(GenericKernel<Kind>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              sizeof(Shared<Kind::kKeyDim>));
}

template <typename Kind>
void Queue(const AttendArguments& a, cudaStream_t stream) {
  GenericKernel<Kind><<<a.work.blocks, kThreads, sizeof(Shared<Kind::kKeyDim>), stream>>>(a);
}

}  // namespace

cudaError_t PrepareGeneric(bool latent) { return latent ? Prepare<Latent>() : Prepare<Stored>(); }

cudaError_t QueueGeneric(const AttendArguments& a, cudaStream_t stream) {
  if (a.latent) {
    Queue<Latent>(a, stream);
  } else {
    Queue<Stored>(a, stream);
  }
  return cudaGetLastError();
}

}  // namespace prefixd::cuda
