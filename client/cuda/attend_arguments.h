// What the attention kernels are given: the work list, the shape of a call, and where partial
// results wait for each other.
//
// Plain values; arrays are in device memory.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "geometry.h"

namespace prefixd::cuda {

inline constexpr uint32_t kColumns = 8;  // (query row, head) pairs of one kv head that go together
inline constexpr uint32_t kMergeParts = 64;  // parts whose weights are in shared memory at a time
inline constexpr uint32_t kMergeFloats = kMergeParts * kColumns * 2;
inline constexpr uint32_t kPrefillColumns = 128;  // the same, of the prefill kernel

inline constexpr uint32_t kNoTile = ~0u;

// A block that some row sees. Position of slot 0: `first`.
struct alignas(16) DevicePage {
  const uint8_t* units = nullptr;  // of layer 0; layers are layer_bytes apart
  uint32_t first = 0;
  uint32_t tokens = 0;
  uint32_t page_tokens = 0;
  uint32_t format = 0;
  uint32_t layer_bytes = 0;
  uint32_t tile = kNoTile;  // the first of its tiles, see AttendArguments
};

// One sequence, one kv head, up to kColumns columns (of the prefill kernel kPrefillColumns): column
// c is query row c / group and head c % group of the kv head, counted from `column`. Its partial
// results have the numbers [part, part + parts).
struct Segment {
  uint32_t sequence = 0;
  uint32_t kv_head = 0;
  uint32_t column = 0;
  uint32_t first_position = 0;  // of query row 0
  uint32_t part = 0;
  uint32_t parts = 0;
};

// Pages [begin, end) for one segment, by one thread block; the result is part `part`.
struct alignas(16) WorkItem {
  uint32_t segment = 0;
  uint32_t begin = 0, end = 0;
  uint32_t part = 0;
  uint32_t kv_head = 0;  // of the segment
  uint32_t reserved[3] = {};
};

// Thread block b has items [firsts[b], firsts[b + 1]).
struct WorkShare {
  const WorkItem* items = nullptr;
  const uint32_t* firsts = nullptr;
  uint32_t blocks = 0;
};

struct HeadsPlace {
  void* data = nullptr;
  uint32_t dtype = 0;
  int64_t sequence_stride = 0, row_stride = 0, head_stride = 0;
};

struct AttendArguments {
  PairGeometry formats[kMostFormats];
  const DevicePage* pages = nullptr;
  const Segment* segments = nullptr;
  WorkShare work;
  float* part_sums = nullptr;      // [part][column][value_dim]
  float2* part_weights = nullptr;  // [part][column]: largest score in log2, sum of weights
  uint32_t* arrived = nullptr;     // [segment]; 0 between calls
  HeadsPlace queries, results;
  const float* sink_logits = nullptr;
  uint32_t layer = 0;
  uint32_t kv_heads = 0, group = 0, query_rows = 0;
  uint32_t key_dim = 0, value_dim = 0;
  bool latent = false;  // values are the keys' first value_dim elements
  float scale = 0;
  float soft_cap = 0;
  // A fast kernel may start before the one before it on the stream has ended, and waits for it only
  // before it reads queries.
  bool early = false;
  uint32_t window = 0, sink_tokens = 0;
  // Of the prefill kernel: tiles of f16 of pages that it does not expand itself, [tile][kv head][K,
  // V], and which pages have some, each once.
  uint8_t* tiles = nullptr;
  const uint32_t* tile_pages = nullptr;
  uint32_t tile_page_count = 0;
  // The prefill kernel sets it where f16 does not hold elements well enough. The generic kernel
  // does nothing while it is 0, unless it is NULL.
  uint32_t* unfit = nullptr;
};

// How the fast kernel is launched for pages of one format.
struct FastLaunch {
  uint32_t warps = 0, stages = 0;
  uint32_t stage_bytes = 0;
  uint32_t shared_bytes = 0;
  uint32_t blocks_each = 0;  // thread blocks of a processor
};

// --- generic kernel (attend_generic.cu): every format, and values in the keys ---
inline constexpr uint32_t kGenericBlocksEach = 4, kLatentBlocksEach = 2;
cudaError_t PrepareGeneric(bool latent);
cudaError_t QueueGeneric(const AttendArguments& arguments, cudaStream_t stream);

// --- prefill kernel (attend_prefill.cu): many rows on Hopper, f16 products ---

// Elements of a head that it computes with: rows are filled up with zeros. Pure.
constexpr uint32_t PrefillDim(uint32_t key_dim, uint32_t value_dim) {
  return key_dim <= 128 && value_dim <= 128 ? 128 : kMaxDim;
}
// Returns whether the kernel runs on a GPU of this compute capability. Pure.
constexpr bool HasPrefill(uint32_t major, uint32_t minor) { return major == 9 && minor == 0; }
// How it reads K or V of a page: codes that it expands itself, or tiles that were expanded before.
enum : uint32_t { kFromTiles = 0, kCodes4 = 4, kCodes8 = 8, kBf16Numbers = 16 };
PREFIXD_BOTH uint32_t HowToRead(const TensorGeometry& t, uint32_t page_tokens) {
  const bool codes = t.layout == kRows && t.dtype != kF32 && t.codec == kMlxAffine &&
                     (t.bits == 8 || t.bits == 4) && t.group == 64 && t.dim == 128 &&
                     page_tokens % 8 == 0;
  return codes ? t.bits | (t.dtype == kBf16 ? +kBf16Numbers : 0) : kFromTiles;
}
// Whether a page's tiles are expanded before. A pinned arena is read over PCIe: once for tiles,
// where the kernel itself would read it for each of its segments. dim: of PrefillDim(). Pure.
inline bool NeedsTiles(const PairGeometry& pair, uint32_t page_tokens, uint32_t dim,
                       bool in_arena) {
  return in_arena || dim != 128 || HowToRead(pair.key, page_tokens) == kFromTiles ||
         HowToRead(pair.value, page_tokens) == kFromTiles;
}
inline constexpr uint32_t kTileTokens = 64;
// Bytes of K or V of a tile: halves, then the largest of them as a float.
PREFIXD_BOTH constexpr uint32_t TileImageBytes(uint32_t dim) { return kTileTokens * dim * 2 + 128; }
// Expands the pages that have tiles (attend_tiles.cu).
cudaError_t QueueTiles(const AttendArguments& arguments, cudaStream_t stream);
cudaError_t PreparePrefill();
// Segments have kPrefillColumns columns; a part is [PrefillDim() / 8][256] float4 of sums, in the
// order of its threads, and [column] weights.
cudaError_t QueuePrefill(const AttendArguments& arguments, cudaStream_t stream);

// --- fast kernels (attend_fast_*.cu): tensor cores on codes as they are stored ---

inline constexpr uint32_t kMostWarps = 8;  // of a processor, and of a thread block

// Floats of shared memory for the sums of a thread block's warps: up to four columns each warp has
// a buffer of four, else two warps share one of eight. It is also where weights of parts are
// merged.
PREFIXD_BOTH uint32_t SumFloats(uint32_t warps, uint32_t columns, uint32_t dim) {
  const uint32_t floats = 4 * dim * (columns <= 4 ? warps : (warps + 1) / 2 * 2);
  return floats < kMergeFloats ? kMergeFloats : floats;
}

// Returns whether there is one for pages of this format. Pure.
bool HasFast(const PairGeometry& pair);
// What a GPU has for thread blocks.
struct SharedMemory {
  uint32_t each = 0;  // bytes of a processor
  uint32_t most = 0;  // bytes of a thread block
};
// Returns how to launch it for pages of at most `page_tokens` tokens; warps is 0 if they do not
// fit. columns: query rows times heads of a kv head. blocks_each: thread blocks of a processor, 1
// or 2; of 2 at least 3 warps each. Two are best for much work, since one computes while the other
// merges; one is best for little, since there are fewer parts to merge. Pure.
FastLaunch PlanFast(const PairGeometry& pair, uint32_t page_tokens, uint32_t columns,
                    SharedMemory memory, uint32_t blocks_each);
// Allows the kernel this much shared memory on the current device; before the first QueueFast().
cudaError_t PrepareFast(const PairGeometry& pair, uint32_t shared_bytes);
// format: that of the pages.
cudaError_t QueueFast(const AttendArguments& arguments, uint32_t format, const FastLaunch& launch,
                      cudaStream_t stream);

}  // namespace prefixd::cuda
