// Gather: scattered pages into device memory, 16 bytes a thread. Expand: units into an engine's
// tensors.
#include "kernels.h"
#include "octets.cuh"

namespace prefixd::cuda {
namespace {

constexpr uint32_t kThreads = 256;
// PCIe is busy from 16 blocks on; the others are the engine's.
constexpr uint32_t kMostGatherBlocks = 48;
constexpr uint32_t kInFlight = 4;  // loads of a thread

__global__ void __launch_bounds__(kThreads) GatherKernel(const Piece* pieces, uint32_t count) {
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const Piece piece = pieces[i];
    const auto* from = static_cast<const uint4*>(piece.from);
    auto* to = static_cast<uint4*>(piece.to);
    const uint32_t words = piece.bytes / sizeof(uint4);
    for (uint32_t at = threadIdx.x; at < words; at += kThreads * kInFlight) {
      uint4 word[kInFlight];
#pragma unroll
      for (uint32_t k = 0; k < kInFlight; ++k) {
        if (at + k * kThreads < words) word[k] = __ldcs(from + at + k * kThreads);
      }
#pragma unroll
      for (uint32_t k = 0; k < kInFlight; ++k) {
        if (at + k * kThreads < words) to[at + k * kThreads] = word[k];
      }
    }
  }
}

// grid: (part, kv head, K or V).
__global__ void __launch_bounds__(kThreads)
    ExpandKernel(const __grid_constant__ ExpandArguments a) {
  const BlockPart part = a.parts[blockIdx.x];
  const uint32_t head = blockIdx.y;
  const bool value = blockIdx.z != 0;
  const PairGeometry& pair = a.formats[part.format];
  const TensorGeometry& tensor = value ? pair.value : pair.key;
  const LayerPlaces layer = PlacesOf(pair, a.kv_heads, part.page_tokens);
  const UnitPlaces& places = value ? layer.value : layer.key;
  const uint8_t* unit =
      part.units + (value ? size_t{a.kv_heads} * layer.key.bytes : 0) + size_t{head} * places.bytes;
  const TensorPlace& to = value ? a.value : a.key;
  const uint32_t octets = tensor.dim / kOctet;
  // Neighbours take neighbouring words: tiled K and V that is transposed have those of other
  // tokens side by side.
  const bool tokens_first = tensor.layout == kTransposed || (tensor.layout == kTiled && !value);
  for (uint32_t i = threadIdx.x; i < part.count * octets; i += kThreads) {
    const uint32_t slot = tokens_first ? i % part.count : i / octets;
    const uint32_t octet = tokens_first ? i / part.count : i % octets;
    float x[8];
    ReadOctet<true>(tensor, places, unit, part.first_slot + slot, octet * kOctet, x);
    WriteTensor(to, a.table, part.token + slot, head, octet * kOctet, x);
  }
}

}  // namespace

cudaError_t QueueGather(const Piece* pieces, uint32_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  GatherKernel<<<min(count, kMostGatherBlocks), kThreads, 0, stream>>>(pieces, count);
  return cudaGetLastError();
}

cudaError_t QueueExpand(const ExpandArguments& a, cudaStream_t stream) {
  if (a.part_count == 0) return cudaSuccess;
  ExpandKernel<<<dim3(a.part_count, a.kv_heads, 2), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace prefixd::cuda
