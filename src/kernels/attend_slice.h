// The SIMD part of Attend: one kv head and some query rows over the whole context. Internal to
// kernels/; everything here has been validated.
//
// Thread-safe given a scratch for each thread.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "quant/block_table.h"
#include "quant/format.h"

namespace prefixd::kernels {

// Positions [64 i, 64 i + 64) make tile i, whatever the blocks: the partition that fixes the order
// of every sum.
inline constexpr uint32_t kTileTokens = 64;
inline constexpr uint32_t kStepTokens = 16;  // dequantized and transposed at a time
inline constexpr uint32_t kMaxTileRows = 6;  // query rows times heads in one register tile

struct AttendJob {
  const quant::BlockTableEntry* blocks = nullptr;
  const quant::KvFormat* formats = nullptr;
  const float* q = nullptr;
  float* out = nullptr;
  AttentionShape shape;  // strides filled in
  uint32_t group() const { return shape.query_heads / shape.kv_heads; }
};

struct AttendSlice {
  uint32_t kv_head = 0;
  uint32_t first_row = 0;
  uint32_t rows = 0;
};

// What one query row and head knows so far: its weights are 2^(score - max), sum is theirs.
struct RowState {
  float max = 0;
  float sum = 0;
};

// One thread's working memory, a few hundred KiB: its size follows from the dims and from the rows
// of a slice, never from the context.
struct AttendScratch {
  // Points into `memory`: zeroed, aligned to kAlignment, Bytes() long. Null gives only the sizes.
  AttendScratch(const AttentionShape& shape, size_t row_heads, std::byte* memory);
  static size_t Bytes(const AttentionShape& shape, size_t row_heads);

  static constexpr size_t kAlignment = 64;
  size_t bytes = 0;
  size_t key_pitch = 0;        // floats of a padded row of K and q
  size_t value_pitch = 0;      // the same of V and the sums
  float* query = nullptr;      // [row_heads][key_pitch], scaled
  float* sums = nullptr;       // [row_heads][value_pitch]
  RowState* states = nullptr;  // [row_heads]
  float* keys = nullptr;       // [key_pitch][kTileTokens]
  float* values = nullptr;     // [kTileTokens][value_pitch]
  float* key_rows = nullptr;   // [kStepTokens][key_pitch], before the transpose
  float* scores = nullptr;     // [kMaxTileRows][kTileTokens]
  float* scales = nullptr;     // [kStepTokens][dim / 32]
  float* biases = nullptr;     // the same
  uint8_t* codes = nullptr;    // [dim]
};

// Writes the slice's rows of job.out.
void RunSlice(const AttendJob& job, const AttendSlice& slice, const AttendScratch& scratch);

}  // namespace prefixd::kernels
