// What quantizing to, and expanding from, quads of tokens share: places of rows of halves, and how
// codes of a quad lie.
//
// Device functions, any thread by itself, and what the host needs to launch kernels of quads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "geometry.h"
#include "kernels.h"
#include "octets.cuh"

namespace prefixd::cuda {

// Elements of a block of threads: a page of 64 tokens of 128 channels.
constexpr uint32_t kElementsOfBlock = 8192;

// Where codes lie in a unit.
enum class Codes { kRows, kTiledKeys, kTiledValues };

// Rows of threads of a block, each of which has all octets of `tokens` tokens: whole warps, and no
// more than pages of `page_tokens` need.
constexpr uint32_t RowsOfBlock(uint32_t dim, uint32_t tokens, uint32_t page_tokens) {
  const uint32_t octets = dim / kOctet;  // a multiple of four
  uint32_t whole = 8;                    // rows that are whole warps
  while (octets * whole / 2 % 32 == 0) whole /= 2;
  const uint32_t most = kElementsOfBlock / dim / tokens / whole;
  const uint32_t needed = (page_tokens + tokens * whole - 1) / (tokens * whole);
  return std::max(1u, std::min(most, needed)) * whole;
}

// Whether blocks of dims that are multiples of `step` have whole warps and `most` threads at most.
constexpr bool BlocksFit(uint32_t step, uint32_t tokens, uint32_t most) {
  for (uint32_t dim = step; dim <= kMaxDim; dim += step) {
    const uint32_t threads = dim / kOctet * RowsOfBlock(dim, tokens, kElementsOfBlock);
    if (threads % 32 != 0 || threads > most) return false;
  }
  return true;
}

inline bool HasAlignedHalves(const TensorPlace& place) {
  return (place.dtype == kF16 || place.dtype == kBf16) &&
         reinterpret_cast<uintptr_t>(place.data) % 16 == 0 && place.split % kOctet == 0 &&
         ((place.token_stride | place.head_stride | place.block_stride | place.split_stride) & 7) ==
             0;
}

// Elements before a head's channel.
__device__ __forceinline__ int64_t HeadOffset(const TensorPlace& place, uint32_t head,
                                              uint32_t channel) {
  return head * place.head_stride + ChannelOffset(place, channel);
}

// A token's halves. head: of HeadOffset().
__device__ __forceinline__ uint8_t* RowOf(const TensorPlace& place, const int32_t* table,
                                          int64_t head, uint32_t token) {
  return static_cast<uint8_t*>(place.data) + 2 * ElementOf(place, table, head, token);
}

// Four words of four bytes as the words of their first, second, third and fourth bytes.
__device__ __forceinline__ uint4 Transposed(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
  const uint32_t ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
  return make_uint4(__byte_perm(ab, cd, 0x5410), __byte_perm(ab, cd, 0x7632),
                    __byte_perm(ab_high, cd_high, 0x5410), __byte_perm(ab_high, cd_high, 0x7632));
}

// Where a thread's codes are in a unit.
template <uint32_t kBits>
struct TileOffsets {
  // Of tiled keys, the words of a slot's channels; those of the next word's are 4 * tile further.
  static __device__ __forceinline__ uint32_t Key(const TensorGeometry& t, uint32_t slots,
                                                 uint32_t slot, uint32_t channel, uint32_t& tile) {
    const uint32_t first = slot / kTileSlots * kTileSlots;
    tile = min(kTileSlots, slots - first);
    return first * (t.dim * kBits / 8) + 4 * (channel * kBits / 32 * tile + slot % kTileSlots);
  }
  // Bytes between the values of one quad of slots and those of the next.
  static __device__ __forceinline__ uint32_t ValueStep(const TensorGeometry& t) {
    return t.group * kBits / 2;
  }
};

}  // namespace prefixd::cuda
