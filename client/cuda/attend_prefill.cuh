// What the prefill kernel is made of: wgmma, and the rings in shared memory by which its
// warpgroups hand tiles on.
#pragma once
#include <cstddef>
#include <cstdint>

#include "async_copy.cuh"
#include "attend_common.cuh"

namespace prefixd::cuda {
namespace {

inline constexpr uint32_t kSteps = kMostPrefillDim / 16;
inline constexpr uint32_t kHalfTile = kTileTokens * 128;  // bytes of 64 channels
inline constexpr uint32_t kTileBytes = 2 * kHalfTile;
inline constexpr uint32_t kStageBytes = 2 * kTileBytes;                      // K and V
inline constexpr uint32_t kUnitBytes = kTileTokens * (kMostPrefillDim + 8);  // codes of 8 bits
inline constexpr uint32_t kStages = 4, kUnitStages = 4;
inline constexpr uint32_t kPagesAhead = 32;      // a lane of the loader has one
inline constexpr uint32_t kKey = 0, kValue = 1;  // sides
inline constexpr uint32_t kWarpgroup = 128;
inline constexpr uint32_t kConsumers = 2 * kWarpgroup;
inline constexpr uint32_t kPrefillThreads = 2 * kWarpgroup + kConsumers;
// Weights are f16, from 2^-24 to less than 2^16. The sum of 16 says when they are too large; the
// largest are then made 2^8, so that there is room on both sides.
inline constexpr float kMostSum = 8192, kLargestWeight = 8;

// --- wgmma ---

// 64 channels of a tile are rows of 128 bytes whose 16-byte chunks are swizzled by the row. One
// kind of descriptor serves K (rows are the product's columns) and V (transposed): groups of 8 rows
// are 1024 bytes apart. `leading`: how far behind the other 64 channels of V are, in 16 bytes.
// Returns the lower half; what is `bytes` further on has bytes / 16 added to it.
__device__ __forceinline__ uint32_t DescribeTile(uint32_t at, uint32_t leading) {
  return __shfl_sync(~0u, at / 16 | leading << 16, 0);  // the same for all, as the compiler sees
}
__device__ __forceinline__ uint64_t Descriptor(uint32_t low) {
  return uint64_t{low} | uint64_t{64} << 32 | uint64_t{1} << 62;
}
// d (+)= a b^T: 64 tokens.
__device__ __forceinline__ void MultiplyKeys(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                             bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add ? 1 : 0));
}
// d += a b: 128 channels.
__device__ __forceinline__ void MultiplyValues(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kGroups>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// Keeps the compiler from moving what uses the registers.
template <uint32_t kCount>
__device__ __forceinline__ void Fence(float (&x)[kCount]) {
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
__device__ __forceinline__ uint32_t Halves(float low, float high) {
  uint32_t x;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}

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

// Where an expander writes its token: two rows of eight 16-byte chunks of 8 channels, swizzled by
// the row.
struct TileRow {
  uint32_t at, swizzle;
  __device__ __forceinline__ uint32_t AddressOf(uint32_t chunk) const {
    return at + chunk / 8 * kHalfTile + (((chunk ^ swizzle) & 7) << 4);
  }
};
__device__ __forceinline__ void WriteShared16(uint32_t to, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}

// K or V, in device memory, of the tile that begins at a slot of a page.
static_assert(kTileImageBytes >= kTileBytes + sizeof(float));
__device__ __forceinline__ uint8_t* TileImage(const AttendArguments& a, const DevicePage& page,
                                              uint32_t slot, uint32_t head, uint32_t side) {
  const size_t tile = page.tile + slot / kTileTokens;
  return a.tiles + ((tile * a.kv_heads + head) * 2 + side) * kTileImageBytes;
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

// A tile in f16: what the expanders hand to the consumers.
struct Tile {
  uint32_t position, count;  // count 0: the item ends
};

struct alignas(1024) PrefillShared {
  uint8_t tiles[kStages][kStageBytes];        // K, then V: 64 channels, then the other 64
  uint8_t units[kUnitStages][2][kUnitBytes];  // codes, scales and biases of K and V
  StoredTile stored[kUnitStages];
  Tile tile[kStages];
  uint64_t tile_full[kStages][2], tile_empty[kStages][2];  // of K and V
  uint64_t unit_full[kUnitStages], unit_empty[kUnitStages];
  DevicePage pages[kPagesAhead];
  uint32_t flag;
};

// Addresses there. The first is kept in a register: the compiler would ask for it again and again.
struct Rings {
  uint32_t base;
  __device__ __forceinline__ explicit Rings(const PrefillShared* shared)
      : base(SharedAddress(shared)) {
    asm volatile("" : "+r"(base));
  }
  __device__ __forceinline__ uint32_t Key(uint32_t stage) const {
    return base + offsetof(PrefillShared, tiles) + stage * kStageBytes;
  }
  __device__ __forceinline__ uint32_t Value(uint32_t stage) const {
    return Key(stage) + kTileBytes;
  }
  __device__ __forceinline__ uint32_t Unit(uint32_t stage, uint32_t side) const {
    return base + offsetof(PrefillShared, units) + (2 * stage + side) * kUnitBytes;
  }
  __device__ __forceinline__ uint32_t TileFull(uint32_t stage, uint32_t side) const {
    return base + offsetof(PrefillShared, tile_full) + 16 * stage + 8 * side;
  }
  __device__ __forceinline__ uint32_t TileEmpty(uint32_t stage, uint32_t side) const {
    return base + offsetof(PrefillShared, tile_empty) + 16 * stage + 8 * side;
  }
  __device__ __forceinline__ uint32_t UnitFull(uint32_t stage) const {
    return base + offsetof(PrefillShared, unit_full) + 8 * stage;
  }
  __device__ __forceinline__ uint32_t UnitEmpty(uint32_t stage) const {
    return base + offsetof(PrefillShared, unit_empty) + 8 * stage;
  }
};

}  // namespace
}  // namespace prefixd::cuda
