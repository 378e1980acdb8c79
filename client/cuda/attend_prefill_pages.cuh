// How the prefill kernel reads pages: one warp, the loader, finds tiles of tokens and copies their
// units to shared memory; a warpgroup, the expanders, turns their codes into f16, or copies tiles
// that were expanded before. For heads beyond 128 the loader copies these itself.
#pragma once
#include <cstdint>

#include "async_copy.cuh"
#include "attend_common.cuh"
#include "attend_prefill.cuh"

namespace prefixd::cuda {
namespace {

// --- the loader ---

__device__ __forceinline__ __half2 AsHalves(uint32_t x) { return *reinterpret_cast<__half2*>(&x); }

// What tells whether f16 is good enough for an item's K or V: bounds of its elements, its largest
// scale or its largest element, and whether these were rounded to f16.
struct Fitness {
  __half2 bound, largest;
  bool rounded;
  __device__ __forceinline__ Fitness() {
    bound = largest = AsHalves(0);
    rounded = false;
  }
  __device__ __forceinline__ void Add(__half2 bounds, __half2 scales, bool was_rounded) {
    bound = __hmax2_nan(bound, bounds);
    largest = __hmax2(largest, scales);
    rounded = rounded || was_rounded;
  }
  // largest_of_tile: a float behind a tile that was expanded before.
  __device__ __forceinline__ void AddImage(const uint8_t* largest_of_tile) {
    const float most = __ldcg(reinterpret_cast<const float*>(largest_of_tile));
    const __half2 of_half = __float2half2_rn(most);
    Add(of_half, of_half, true);
  }
  // f16 has 11 bits down to 2^-14, and steps of 2^-24 below: what was rounded is as good as before
  // if there are numbers of 2^-13 and more. Called by all lanes.
  __device__ __forceinline__ bool IsGood() const {
    const bool finite = __hbeq2(__hmul2(bound, AsHalves(0)), AsHalves(0));
    const float mine = fmaxf(__low2float(largest), __high2float(largest));
    const float all = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(mine)));
    return finite && (__any_sync(~0u, rounded) == 0 || all >= 0x1p-13f);
  }
  __device__ __forceinline__ void EndItem(const AttendArguments& a) {
    if (!IsGood()) *a.unfit = 1;
    *this = Fitness();
  }
};

// What follows from the format of a page; one page is mostly like the one before.
struct PageFormat {
  uint32_t format = ~0u, page_tokens = 0;
  uint32_t key_bytes = 0, value_bytes = 0;  // of units
  uint32_t how[2];

  __device__ __forceinline__ bool IsOf(const DevicePage& page) const {
    return page.format == format && page.page_tokens == page_tokens;
  }
  __device__ __forceinline__ void Take(const AttendArguments& a, const DevicePage& page) {
    const PairGeometry& pair = a.formats[page.format];
    format = page.format;
    page_tokens = page.page_tokens;
    key_bytes = PlacesOf(pair.key, page_tokens).bytes;
    value_bytes = PlacesOf(pair.value, page_tokens).bytes;
    how[kKey] = HowToRead(pair.key, page_tokens);
    how[kValue] = HowToRead(pair.value, page_tokens);
  }
  // What is the same for all tiles of a page.
  __device__ __forceinline__ void Describe(const AttendArguments& a, const DevicePage& page,
                                           uint32_t kv_head, StoredTile* tile) {
    if (!IsOf(page)) Take(a, page);
    const uint8_t* units = page.units + size_t{a.layer} * page.layer_bytes;
    tile->unit[kKey] = units + kv_head * key_bytes;
    tile->unit[kValue] = units + a.kv_heads * key_bytes + kv_head * value_bytes;
    const bool expanded = page.tile != kNoTile;
    tile->how[kKey] = expanded ? +kFromTiles : how[kKey];
    tile->how[kValue] = expanded ? +kFromTiles : how[kValue];
    tile->page_tokens = page.page_tokens;
    tile->format = page.format;
  }
};

// Codes, scales and biases of a tile, as if its page had kTileTokens tokens. Returns the bytes that
// will come.
__device__ __forceinline__ uint32_t CopyUnit(const TensorGeometry& t, const StoredTile& tile,
                                             const uint8_t* unit, uint32_t to, uint32_t barrier) {
  const uint32_t rows = min(kTileTokens, tile.page_tokens - tile.slot);
  const uint32_t parameters = rows * t.row_scales;
  const uint32_t bytes = rows * t.row_codes + 2 * parameters;
  if (tile.page_tokens == kTileTokens) {
    CopyBulk(to, unit, bytes, barrier);
    return bytes;
  }
  const UnitPlaces places = PlacesOf(t, tile.page_tokens);
  CopyBulk(to, unit + tile.slot * t.row_codes, rows * t.row_codes, barrier);
  to += kTileTokens * t.row_codes;
  CopyBulk(to, unit + places.scales + tile.slot * t.row_scales, parameters, barrier);
  to += kTileTokens * t.row_scales;
  CopyBulk(to, unit + places.biases + tile.slot * t.row_scales, parameters, barrier);
  return bytes;
}

__device__ __forceinline__ bool HasCodes(uint32_t how) { return (how & (kCodes8 | kCodes4)) != 0; }

// Hands a tile to the expanders when its units have come. Called by one lane.
template <typename H>
__device__ __forceinline__ void SendTile(const AttendArguments& a, const StoredTile& tile,
                                         PrefillShared<H>& shared, const Rings<H>& rings,
                                         uint32_t stage) {
  const uint32_t full = rings.UnitFull(stage);
  shared.stored[stage] = tile;
  uint32_t bytes = 0;
  if (tile.count != 0 && tile.count != kNoMoreTiles) {
    const PairGeometry& pair = a.formats[tile.format];
    if (HasCodes(tile.how[kKey])) {
      bytes += CopyUnit(pair.key, tile, tile.unit[kKey], rings.Unit(stage, kKey), full);
    }
    if (HasCodes(tile.how[kValue])) {
      bytes += CopyUnit(pair.value, tile, tile.unit[kValue], rings.Unit(stage, kValue), full);
    }
  }
  ArriveAndExpect(full, bytes);
}

// Sends a tile that was expanded before to the consumers themselves. Called by all lanes.
template <typename H>
__device__ __forceinline__ void SendImages(const AttendArguments& a, const StoredTile& tile,
                                           PrefillShared<H>& shared, const Rings<H>& rings,
                                           const Place<H::kStages>& at, Fitness (&fit)[2]) {
#pragma unroll
  for (const uint32_t side : {kKey, kValue}) {
    WaitForPhase(rings.TileEmpty(at.stage, side), at.parity ^ 1);
    if (threadIdx.x % 32 == 0) {
      const uint32_t full = rings.TileFull(at.stage, side);
      if (side == kKey) shared.tile[at.stage] = {tile.position, tile.count};
      ArriveAndExpect(full, tile.count != 0 ? H::kTileBytes : 0);
      if (tile.count != 0) {
        CopyBulk(rings.Key(at.stage) + side * H::kTileBytes, tile.unit[side], H::kTileBytes, full);
      }
    }
    if (tile.count != 0) {
      fit[side].AddImage(tile.unit[side] + H::kTileBytes);
    } else {
      fit[side].EndItem(a);
    }
  }
}

// The positions that some row of a segment sees.
struct SeenPlaces {
  uint32_t first = 0, last = 0;  // positions of the segment's rows

  __device__ __forceinline__ SeenPlaces(const AttendArguments& a, const Segment& segment) {
    const uint32_t columns = min(kPrefillColumns, a.query_rows * a.group - segment.column);
    first = segment.first_position + RowOf(a, segment, 0);
    last = segment.first_position + RowOf(a, segment, columns - 1);
  }
  __device__ __forceinline__ bool Any(const AttendArguments& a, uint32_t position,
                                      uint32_t count) const {
    if (position > last) return false;
    return a.window == 0 || position < a.sink_tokens || position + count - 1 + a.window > first;
  }
};

// Called by all lanes of the loader, which see the same.
template <typename H>
__device__ __forceinline__ void LoadTiles(const AttendArguments& a, PrefillShared<H>& shared) {
  const Rings<H> rings(&shared);
  const uint32_t lane = threadIdx.x % 32;
  Place<H::kSmall ? kUnitStages : H::kStages> at;
  Fitness fit[2];
  const auto send = [&](const StoredTile& tile) {
    if constexpr (H::kSmall) {
      WaitForPhase(rings.UnitEmpty(at.stage), at.parity ^ 1);
      if (lane == 0) SendTile(a, tile, shared, rings, at.stage);
    } else {
      SendImages(a, tile, shared, rings, at, fit);
    }
    at.Step();
  };
  PageFormat format;
  StoredTile tile = {};
  const uint32_t last_item = a.work.firsts[blockIdx.x + 1];
  for (uint32_t i = a.work.firsts[blockIdx.x]; i < last_item; ++i) {
    const WorkItem item = a.work.items[i];
    const SeenPlaces seen(a, a.segments[item.segment]);
    for (uint32_t p = item.begin; p < item.end; ++p) {
      const uint32_t k = (p - item.begin) % kPagesAhead;
      if (k == 0) {
        __syncwarp();
        if (p + lane < item.end) shared.pages[lane] = a.pages[p + lane];
        __syncwarp();
      }
      const DevicePage page = shared.pages[k];
      const bool expanded = !H::kSmall || page.tile != kNoTile;
      if constexpr (H::kSmall) format.Describe(a, page, item.kv_head, &tile);
      for (tile.slot = 0; tile.slot < page.tokens; tile.slot += kTileTokens) {
        tile.position = page.first + tile.slot;
        tile.count = min(kTileTokens, page.tokens - tile.slot);
        if (expanded) {
          tile.unit[kKey] = TileImage<H::kDim>(a, page, tile.slot, item.kv_head, kKey);
          tile.unit[kValue] = TileImage<H::kDim>(a, page, tile.slot, item.kv_head, kValue);
        }
        if (seen.Any(a, tile.position, tile.count)) send(tile);
      }
    }
    tile.count = 0;
    send(tile);
  }
  tile.count = kNoMoreTiles;
  if constexpr (H::kSmall) send(tile);
}

// --- expanders: thread t has token t % 64 of K, or of V ---

__device__ __forceinline__ uint4 ReadShared16(uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}
__device__ __forceinline__ uint32_t ReadShared4(uint32_t from) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ uint32_t AsWord(__half2 x) { return *reinterpret_cast<uint32_t*>(&x); }
__device__ __forceinline__ uint32_t Bytes(uint32_t a, uint32_t b, uint32_t which) {
  uint32_t x;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(b), "r"(which));
  return x;
}

__device__ __forceinline__ uint32_t HalvesOfBf16(uint32_t pair) {
  return Halves(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}

// The integer n in the low bits of 0x6400 is 1024 + n.
inline constexpr uint32_t kMagic = 0x64006400u;

// Eight codes of 8 bits, two words.
__device__ __forceinline__ uint4 Expand8(uint32_t low, uint32_t high, __half2 scale, __half2 bias) {
  const __half2 magic = AsHalves(kMagic);
  const uint32_t code[4] = {Bytes(low, kMagic, 0x5150), Bytes(low, kMagic, 0x5352),
                            Bytes(high, kMagic, 0x5150), Bytes(high, kMagic, 0x5352)};
  uint32_t x[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    x[i] = AsWord(__hfma2(__hsub2(AsHalves(code[i]), magic), scale, bias));
  }
  return make_uint4(x[0], x[1], x[2], x[3]);
}
// Eight codes of 4 bits, one word: byte i has channels 2 i and 2 i + 1.
__device__ __forceinline__ uint4 Expand4(uint32_t word, __half2 scale, __half2 bias) {
  const __half2 ones = AsHalves(0x2C003C00u), less = AsHalves(0xD400E400u);  // 1/16, 1; -64, -1024
  uint32_t x[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t both = Bytes(word, kMagic, 0x5050 + i * 0x0101);
    const __half2 code = __hfma2(AsHalves(both & 0xFFF0FF0Fu), ones, less);
    x[i] = AsWord(__hfma2(code, scale, bias));
  }
  return make_uint4(x[0], x[1], x[2], x[3]);
}

__device__ __forceinline__ bool TakesOtherHalfFirst(uint32_t token) { return token / 4 % 2 != 0; }

// The parameters of a token's two groups of 64 channels, in the order in which its thread takes
// them.
struct Parameters {
  __half2 scale[2], bias[2];
};

__device__ __forceinline__ Parameters ReadParameters(uint32_t how, uint32_t at, uint32_t token,
                                                     bool exists, Fitness& fit) {
  uint32_t scales = ReadShared4(at + 4 * token);
  uint32_t biases = ReadShared4(at + kTileTokens * 4 + 4 * token);
  if (!exists) scales = biases = 0;
  if ((how & kBf16Numbers) != 0) {
    scales = HalvesOfBf16(scales);
    biases = HalvesOfBf16(biases);
  }
  const __half2 most = AsHalves((how & kCodes8) != 0 ? 0x5BF85BF8u : 0x4B804B80u);  // 255, 15
  const __half2 size = __habs2(AsHalves(scales));
  fit.Add(__hfma2(size, most, __habs2(AsHalves(biases))), size,
          exists && (how & kBf16Numbers) != 0);
  const bool other = TakesOtherHalfFirst(token);
  const uint32_t first = other ? 0x3232 : 0x1010, second = other ? 0x1010 : 0x3232;
  Parameters p;
  p.scale[0] = AsHalves(Bytes(scales, 0, first));
  p.scale[1] = AsHalves(Bytes(scales, 0, second));
  p.bias[0] = AsHalves(Bytes(biases, 0, first));
  p.bias[1] = AsHalves(Bytes(biases, 0, second));
  return p;
}

// Threads of eight neighbouring tokens read other 16 bytes of their codes at a time, and write
// other chunks, so that no two meet in a bank: a thread's turn is by which exclusive or its steps
// differ from those of token 0. The steps of one half of the channels follow those of the other.
struct Turned {
  uint32_t from, to[2];
  // chunks: that 16 bytes of codes become.
  __device__ __forceinline__ Turned(uint32_t row_at, uint32_t turn, uint32_t chunks,
                                    const TileRow& row, bool other) {
    from = row_at ^ turn << 4;
    const uint32_t at = row.at + ((chunks * turn ^ row.swizzle) % 8 << 4);
    to[0] = at + (other ? kPartBytes : 0);
    to[1] = at + (other ? 0 : kPartBytes);
  }
  __device__ __forceinline__ void Put(uint32_t chunk, uint4 x) const {
    WriteShared16(to[chunk / 8] ^ chunk % 8 << 4, x);
  }
};

__device__ __forceinline__ void Expand8(uint32_t unit, uint32_t token, const Parameters& p,
                                        const TileRow& row) {
  const Turned turned(unit + token * 128, token % 8, 2, row, TakesOtherHalfFirst(token));
  uint4 x[8];
#pragma unroll
  for (uint32_t j = 0; j < 8; ++j) x[j] = ReadShared16(turned.from ^ j << 4);
#pragma unroll
  for (uint32_t j = 0; j < 8; ++j) {
    const __half2 scale = p.scale[j / 4], bias = p.bias[j / 4];
    turned.Put(2 * j, Expand8(x[j].x, x[j].y, scale, bias));
    turned.Put(2 * j + 1, Expand8(x[j].z, x[j].w, scale, bias));
  }
}
__device__ __forceinline__ void Expand4(uint32_t unit, uint32_t token, const Parameters& p,
                                        const TileRow& row) {
  const Turned turned(unit + token * 64, token / 2 % 4, 4, row, TakesOtherHalfFirst(token));
  uint4 x[4];
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j) x[j] = ReadShared16(turned.from ^ j << 4);
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j) {
    const __half2 scale = p.scale[j / 2], bias = p.bias[j / 2];
    turned.Put(4 * j, Expand4(x[j].x, scale, bias));
    turned.Put(4 * j + 1, Expand4(x[j].y, scale, bias));
    turned.Put(4 * j + 2, Expand4(x[j].z, scale, bias));
    turned.Put(4 * j + 3, Expand4(x[j].w, scale, bias));
  }
}

// Makes halves of codes in the stage's unit.
__device__ __forceinline__ void ExpandTile(const StoredTile& tile, uint32_t side, uint32_t unit,
                                           uint32_t to, Fitness& fit) {
  const uint32_t token = threadIdx.x % kTileTokens;
  const TileRow row = {to + token * 128, token % 8};
  const uint32_t how = tile.how[side];
  const bool exists = token < tile.count;
  if ((how & kCodes8) != 0) {
    const uint32_t parameters = unit + kTileTokens * 128;
    Expand8(unit, token, ReadParameters(how, parameters, token, exists, fit), row);
  } else {
    const uint32_t parameters = unit + kTileTokens * 64;
    Expand4(unit, token, ReadParameters(how, parameters, token, exists, fit), row);
  }
}

// A tile that was expanded before comes by a copy that the barrier counts: the first of the two
// warps that arrive there has it.
template <typename H>
__device__ __forceinline__ void CopyTile(const uint8_t* image, uint32_t to, uint32_t barrier,
                                         Fitness& fit) {
  if (threadIdx.x % kTileTokens < 32) {
    if (threadIdx.x % kTileTokens == 0) {
      ArriveAndExpect(barrier, H::kTileBytes);
      CopyBulk(to, image, H::kTileBytes, barrier);
    }
    __syncwarp();
  } else {
    ArriveOnce(barrier);
  }
  fit.AddImage(image + H::kTileBytes);
}

template <typename H>
__device__ __forceinline__ void ExpandTiles(const AttendArguments& a, PrefillShared<H>& shared) {
  const Rings<H> rings(&shared);
  const uint32_t side = threadIdx.x / kTileTokens % 2;
  Place<kUnitStages> from;
  Place<H::kStages> to;
  Fitness of_codes, of_images;
  for (;;) {
    WaitForPhase(rings.UnitFull(from.stage), from.parity);
    const StoredTile& tile = shared.stored[from.stage];
    const uint32_t count = tile.count;
    if (count == kNoMoreTiles) return;
    WaitForPhase(rings.TileEmpty(to.stage, side), to.parity ^ 1);
    if (threadIdx.x % kWarpgroup == 0) shared.tile[to.stage] = {tile.position, count};
    const uint32_t at = rings.Key(to.stage) + side * H::kTileBytes;
    const uint32_t full = rings.TileFull(to.stage, side);
    if (count != 0 && !HasCodes(tile.how[side])) {
      const uint8_t* image = tile.unit[side];
      ArriveOnce(rings.UnitEmpty(from.stage));
      CopyTile<H>(image, at, full, of_images);
    } else {
      if (count == 0) {
        of_codes.EndItem(a);
        of_images.EndItem(a);
      } else {
        ExpandTile(tile, side, rings.Unit(from.stage, side), at, of_codes);
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      ArriveOnce(rings.UnitEmpty(from.stage));
      ArriveOnce(full);
    }
    from.Step();
    to.Step();
  }
}

}  // namespace
}  // namespace prefixd::cuda
