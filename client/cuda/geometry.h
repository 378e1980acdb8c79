// Where the codes, scales and biases of a unit lie, for code that runs on the GPU: the same numbers
// as quant/format.h and quant/tiled.h, without their containers.
//
// Plain values and pure functions, for host and device.
#pragma once
#include <cstdint>

#if defined(__CUDACC__)
#define PREFIXD_BOTH __host__ __device__ __forceinline__
#else
#define PREFIXD_BOTH inline
#endif

namespace prefixd::cuda {

// The values are those of prefixd/format.h; TensorGeometry keeps them as bytes.
enum : uint8_t { kF32 = 1, kF16 = 2, kBf16 = 3 };
enum : uint8_t { kF8 = 16 };  // of an engine's tensors: PREFIXD_CUDA_F8
enum : uint8_t { kRaw = 1, kMlxAffine = 2, kQ4_0 = 3, kQ4_1 = 4, kQ5_0 = 5, kQ5_1 = 6, kQ8_0 = 7 };
enum : uint8_t { kRows = 1, kTiled = 2, kTransposed = 3 };

inline constexpr uint32_t kMaxDim = 256;
// Keys whose first elements are the values, as of MLA, which pages hold alone: above kMaxDim they
// are multiples of kLatentStep.
inline constexpr uint32_t kMaxLatentDim = 576, kMaxLatentValueDim = 512, kLatentStep = 64;
inline constexpr uint32_t kMostFormats = 8;
inline constexpr uint32_t kOctet = 8;  // channels that are read and written together
inline constexpr uint32_t kUnitAlignment = 128;
inline constexpr uint32_t kTileSlots = 32;
inline constexpr uint32_t kQuad = 4;  // tokens whose codes lie together in tiles

// K or V in one format.
struct TensorGeometry {
  uint8_t codec = 0, bits = 0, dtype = 0, layout = 0;
  uint8_t value = 0;  // 1: V
  uint8_t reserved = 0;
  uint16_t group = 0;  // channels of a scale; 0 for raw
  uint32_t dim = 0;
  uint32_t row_codes = 0, row_scales = 0, row_biases = 0;  // stored bytes of a token
};

struct UnitPlaces {
  uint32_t slots = 0;
  uint32_t scales = 0, biases = 0;  // offsets of theirs; codes begin at 0
  uint32_t bytes = 0;               // of the unit
};

PREFIXD_BOTH UnitPlaces PlacesOf(const TensorGeometry& tensor, uint32_t page_tokens) {
  UnitPlaces places;
  places.slots = tensor.layout == kTiled ? (page_tokens + 15) / 16 * 16 : page_tokens;
  places.scales = places.slots * tensor.row_codes;
  places.biases = places.scales + places.slots * tensor.row_scales;
  const uint32_t payload = places.biases + places.slots * tensor.row_biases;
  places.bytes = (payload + kUnitAlignment - 1) / kUnitAlignment * kUnitAlignment;
  return places;
}

// K and V of one format, and how a layer of a block is cut into units. value.dim is 0 where pages
// hold keys alone.
struct PairGeometry {
  TensorGeometry key, value;
};
struct LayerPlaces {
  UnitPlaces key, value;
  uint32_t bytes = 0;  // of a layer: K units, then V units
};
PREFIXD_BOTH LayerPlaces PlacesOf(const PairGeometry& pair, uint32_t kv_heads,
                                  uint32_t page_tokens) {
  LayerPlaces places;
  places.key = PlacesOf(pair.key, page_tokens);
  places.value = PlacesOf(pair.value, page_tokens);
  places.bytes = kv_heads * (places.key.bytes + places.value.bytes);
  return places;
}

PREFIXD_BOTH uint32_t ElementBytes(uint32_t dtype) {
  return dtype == kF32 ? 4 : dtype == kF8 ? 1 : 2;
}

// Where the element of a token is; prefixd_cuda_tensor without its table.
struct TensorPlace {
  void* data = nullptr;
  uint32_t dtype = 0;
  uint32_t block_tokens = 0;  // 0 = contiguous
  int64_t block_stride = 0, token_stride = 0, head_stride = 0, split_stride = 0;
  uint32_t split = 0;
  float scale = 1;  // of kF8
};

}  // namespace prefixd::cuda
