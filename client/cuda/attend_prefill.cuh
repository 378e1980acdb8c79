// The rings in shared memory by which the warpgroups of the prefill kernel hand tiles on.
#pragma once
#include <cstddef>
#include <cstdint>

#include "async_copy.cuh"
#include "attend_common.cuh"
#include "wgmma.cuh"

namespace prefixd::cuda {
namespace {

inline constexpr uint32_t kPartBytes = kTileTokens * 128;  // of 64 channels of a tile
inline constexpr uint32_t kUnitStages = 4;
inline constexpr uint32_t kPagesAhead = 32;      // a lane of the loader has one
inline constexpr uint32_t kKey = 0, kValue = 1;  // sides
inline constexpr uint32_t kWarpgroup = 128;
inline constexpr uint32_t kConsumers = 2 * kWarpgroup;

// What follows from the elements of a head. Up to 128, there is room for codes in shared memory,
// for warps that expand them, and for queries in registers. Beyond, the loader copies tiles that
// were expanded before, and queries are in shared memory.
template <uint32_t kDimOfHeads>
struct Heads {
  static constexpr uint32_t kDim = kDimOfHeads;
  static constexpr bool kSmall = kDim <= 128;
  static constexpr uint32_t kSteps = kDim / 16;
  static constexpr uint32_t kTileBytes = kDim / 64 * kPartBytes;  // of K or V
  static constexpr uint32_t kStages = kSmall ? 4 : 2;
  static constexpr uint32_t kUnitBytes = kSmall ? kTileTokens * (kDim + 8) : 16;  // codes of 8 bits
  static constexpr uint32_t kQueryBytes = kSmall ? 16 : 2 * kTileBytes;  // of both warpgroups
  static constexpr uint32_t kResults = kDim / 2;                         // of a consumer
  static constexpr uint32_t kProducers = kSmall ? 2 * kWarpgroup : kWarpgroup;
  static constexpr uint32_t kThreads = kProducers + kConsumers;
  static constexpr uint32_t kLoaderRegisters = kSmall ? 32 : 24;
  static constexpr uint32_t kExpanderRegisters = 80;
  static constexpr uint32_t kConsumerRegisters = kSmall ? 200 : 240;
};
// Weights are f16, from 2^-24 to less than 2^16. The sum of 16 says when they are too large; the
// largest are then made 2^8, so that there is room on both sides.
inline constexpr float kMostSum = 8192, kLargestWeight = 8;

// --- the rings ---

// A stage of a ring and the parity of its barriers' phase.
template <uint32_t kCount>
struct Place {
  uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void Step() {
    if (++stage == kCount) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Returns whether the phase has ended, without waiting.
__device__ __forceinline__ bool HasEnded(uint32_t barrier, uint32_t parity) {
  uint32_t ended;
  asm volatile(
      "{\n.reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}
// Arrives once for the warp, when all lanes have come.
__device__ __forceinline__ void ArriveOnce(uint32_t barrier) {
  __syncwarp();
  asm volatile(
      "{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\n"
      "@one mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(barrier)
      : "memory");
}
__device__ __forceinline__ void ConsumersMeet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}
// One warpgroup of consumers: 0 or 1.
__device__ __forceinline__ void GroupMeets(uint32_t group) {
  asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"(kWarpgroup) : "memory");
}

// Where a row of a tile lies: parts of eight 16-byte chunks of 8 channels, swizzled by the
// row.
struct TileRow {
  uint32_t at, swizzle;
  __device__ __forceinline__ uint32_t AddressOf(uint32_t chunk) const {
    return at + chunk / 8 * kPartBytes + (((chunk ^ swizzle) & 7) << 4);
  }
};
__device__ __forceinline__ void WriteShared16(uint32_t to, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}

// K or V, in device memory, of the tile that begins at a slot of a page.
template <uint32_t kDim>
__device__ __forceinline__ uint8_t* TileImage(const AttendArguments& a, const DevicePage& page,
                                              uint32_t slot, uint32_t head, uint32_t side) {
  const size_t tile = page.tile + slot / kTileTokens;
  return a.tiles + ((tile * a.kv_heads + head) * 2 + side) * TileImageBytes(kDim);
}

// Tokens of a page as they are stored: what the loader hands to the expanders.
struct StoredTile {
  uint32_t position;       // of its first token
  uint32_t count;          // of tokens; 0: the item ends
  uint32_t how[2];         // to read K and V; codes are in the stage
  const uint8_t* unit[2];  // of K and V in device memory, or the tile's image
  uint32_t slot;           // of its first token in the page
  uint32_t page_tokens;
  uint32_t format;
};
inline constexpr uint32_t kNoMoreTiles = ~0u;  // as count

// A tile in f16: what the consumers are handed.
struct Tile {
  uint32_t position, count;  // count 0: the item ends
};

template <typename H>
struct PrefillShared {
  alignas(1024) uint8_t tiles[H::kStages][2][H::kTileBytes];  // K and V: 64 channels, the next 64
  alignas(1024) uint8_t queries[H::kQueryBytes];              // of each warpgroup, as a tile
  // Codes, scales and biases of K and V. Expanders find chunks of 16 bytes by exclusive or.
  alignas(128) uint8_t units[kUnitStages][2][H::kUnitBytes];
  StoredTile stored[kUnitStages];
  Tile tile[H::kStages];
  uint64_t tile_full[H::kStages][2], tile_empty[H::kStages][2];  // of K and V
  uint64_t unit_full[kUnitStages], unit_empty[kUnitStages];
  DevicePage pages[kPagesAhead];
  uint32_t flag;
};

// Addresses there. The first is kept in a register: the compiler would ask for it again and again.
template <typename H>
struct Rings {
  using Shared = PrefillShared<H>;
  uint32_t base;
  __device__ __forceinline__ explicit Rings(const Shared* shared) : base(SharedAddress(shared)) {
    asm volatile("" : "+r"(base));
  }
  __device__ __forceinline__ uint32_t Key(uint32_t stage) const {
    return base + offsetof(Shared, tiles) + stage * 2 * H::kTileBytes;
  }
  __device__ __forceinline__ uint32_t Value(uint32_t stage) const {
    return Key(stage) + H::kTileBytes;
  }
  __device__ __forceinline__ uint32_t Queries(uint32_t group) const {
    return base + offsetof(Shared, queries) + group * H::kTileBytes;
  }
  __device__ __forceinline__ uint32_t Unit(uint32_t stage, uint32_t side) const {
    return base + offsetof(Shared, units) + (2 * stage + side) * H::kUnitBytes;
  }
  __device__ __forceinline__ uint32_t TileFull(uint32_t stage, uint32_t side) const {
    return base + offsetof(Shared, tile_full) + 16 * stage + 8 * side;
  }
  __device__ __forceinline__ uint32_t TileEmpty(uint32_t stage, uint32_t side) const {
    return base + offsetof(Shared, tile_empty) + 16 * stage + 8 * side;
  }
  __device__ __forceinline__ uint32_t UnitFull(uint32_t stage) const {
    return base + offsetof(Shared, unit_full) + 8 * stage;
  }
  __device__ __forceinline__ uint32_t UnitEmpty(uint32_t stage) const {
    return base + offsetof(Shared, unit_empty) + 8 * stage;
  }
};

}  // namespace
}  // namespace prefixd::cuda
