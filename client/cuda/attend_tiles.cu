// Expands pages of any format into tiles of f16 in device memory, as the prefill kernel has them in
// shared memory: it copies them there as they are.
//
// A block of threads takes K or V of one page and head, a tile at a time; a thread has one octet of
// several tokens.
#include "async_copy.cuh"
#include "attend_prefill.cuh"
#include "octets.cuh"

namespace prefixd::cuda {
namespace {

constexpr uint32_t kThreads = 256;
struct Unit {
  const uint8_t* bytes;
  UnitPlaces places;
  uint32_t first, tokens;  // slots of the tile that hold tokens: [first, first + tokens)
};

// What a compiler needs to know of a format, so that it reads it by a few instructions. 0: nothing.
template <uint8_t kCodec, uint8_t kBits, uint8_t kLayout, bool kValue>
struct Known {
  static __device__ __forceinline__ TensorGeometry Of(TensorGeometry t) {
    t.codec = kCodec;
    t.bits = kBits;
    t.layout = kLayout;
    t.value = kValue ? 1 : 0;
    if (kCodec == kMlxAffine) t.row_biases = t.row_scales;
    if (kCodec == kQ8_0 || kCodec == kQ4_0) {
      t.group = 32;
      t.row_biases = 0;
      t.dtype = kF16;
    }
    return t;
  }
};
struct Unknown {
  static __device__ __forceinline__ TensorGeometry Of(TensorGeometry t) { return t; }
};

// Returns the largest element that this thread has, INFINITY for what is no number.
template <uint32_t kDim, typename Format>
__device__ __forceinline__ float ExpandInto(uint32_t image, const TensorGeometry& given,
                                            const Unit& unit) {
  constexpr uint32_t kOctets = kDim / kOctet;
  constexpr uint32_t kEach = kTileTokens * kOctets / kThreads;  // octets of a thread
  const TensorGeometry t = Format::Of(given);
  // Neighbours have what lies side by side: tokens of tiles, channels of rows.
  const bool by_token = t.layout != kRows;
  float largest = 0;
#pragma unroll 2
  for (uint32_t k = 0; k < kEach; ++k) {
    const uint32_t i = threadIdx.x + k * kThreads;
    const uint32_t token = by_token ? i % kTileTokens : i / kOctets;
    const uint32_t octet = by_token ? i / kTileTokens : i % kOctets;
    float x[8] = {};
    if (token < unit.tokens && octet * kOctet < t.dim) {
      ReadOctet<false>(t, unit.places, unit.bytes, unit.first + token, octet * kOctet, x);
    }
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j) {
      largest = x[j] == x[j] ? fmaxf(largest, fabsf(x[j])) : INFINITY;
    }
    WriteShared16(
        TileRow{image + token * 128, token % 8}.AddressOf(octet),
        make_uint4(Halves(x[0], x[1]), Halves(x[2], x[3]), Halves(x[4], x[5]), Halves(x[6], x[7])));
  }
  return largest;
}

template <uint32_t kDim, uint8_t kCodec, uint8_t kBits>
__device__ __forceinline__ float ExpandTiled(uint32_t image, const TensorGeometry& t,
                                             const Unit& unit) {
  if (t.value != 0) return ExpandInto<kDim, Known<kCodec, kBits, kTiled, true>>(image, t, unit);
  return ExpandInto<kDim, Known<kCodec, kBits, kTiled, false>>(image, t, unit);
}

template <uint32_t kDim>
__device__ __forceinline__ float ExpandAny(uint32_t image, const TensorGeometry& t,
                                           const Unit& unit) {
  const bool tiled = t.layout == kTiled;
  if (tiled && t.codec == kMlxAffine) {
    return t.bits == 8 ? ExpandTiled<kDim, kMlxAffine, 8>(image, t, unit)
                       : ExpandTiled<kDim, kMlxAffine, 4>(image, t, unit);
  }
  if (tiled && t.codec == kQ8_0) return ExpandTiled<kDim, kQ8_0, 8>(image, t, unit);
  if (tiled && t.codec == kQ4_0) return ExpandTiled<kDim, kQ4_0, 4>(image, t, unit);
  if (t.codec == kQ8_0) return ExpandInto<kDim, Known<kQ8_0, 8, kRows, false>>(image, t, unit);
  if (t.codec == kQ4_0) return ExpandInto<kDim, Known<kQ4_0, 4, kRows, false>>(image, t, unit);
  return ExpandInto<kDim, Unknown>(image, t, unit);
}

// grid: (entry of tile_pages, kv head, K or V)
template <uint32_t kDim>
__global__ void __launch_bounds__(kThreads, 4)
    ExpandTilesKernel(const __grid_constant__ AttendArguments a) {
  constexpr uint32_t kTileBytes = Heads<kDim>::kTileBytes;
  __shared__ __align__(128) uint8_t image[kTileBytes];
  __shared__ uint32_t largest;
  const DevicePage page = a.pages[a.tile_pages[blockIdx.x]];
  const PairGeometry& pair = a.formats[page.format];
  const uint32_t side = blockIdx.z, head = blockIdx.y;
  const TensorGeometry& t = side == kKey ? pair.key : pair.value;
  Unit unit;
  unit.places = PlacesOf(t, page.page_tokens);
  unit.bytes = page.units + size_t{a.layer} * page.layer_bytes + head * unit.places.bytes;
  if (side == kValue) unit.bytes += a.kv_heads * PlacesOf(pair.key, page.page_tokens).bytes;
  for (unit.first = 0; unit.first < page.tokens; unit.first += kTileTokens) {
    if (threadIdx.x == 0) largest = 0;
    unit.tokens = min(kTileTokens, page.tokens - unit.first);
    __syncthreads();
    const float mine = ExpandAny<kDim>(SharedAddress(image), t, unit);
    const uint32_t most = __reduce_max_sync(~0u, __float_as_uint(mine));
    if (threadIdx.x % 32 == 0) atomicMax(&largest, most);
    __syncthreads();
    uint8_t* to = TileImage<kDim>(a, page, unit.first, head, side);
    for (uint32_t i = threadIdx.x; i < kTileBytes / 16; i += kThreads) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(image)[i];
    }
    if (threadIdx.x == 0) *reinterpret_cast<uint32_t*>(to + kTileBytes) = largest;
    __syncthreads();
  }
}

}  // namespace

cudaError_t QueueTiles(const AttendArguments& a, cudaStream_t stream) {
  if (a.tile_page_count == 0) return cudaSuccess;
  const dim3 grid(a.tile_page_count, a.kv_heads, 2);
  if (PrefillDim(a.key_dim, a.value_dim) == 128) {
    ExpandTilesKernel<128><<<grid, kThreads, 0, stream>>>(a);
  } else {
    ExpandTilesKernel<kMaxDim><<<grid, kThreads, 0, stream>>>(a);
  }
  return cudaGetLastError();
}

}  // namespace prefixd::cuda
