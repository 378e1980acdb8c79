// The SIMD part of Attend: one kv head and some query rows over the whole context. Internal to
// kernels/; everything here has been validated.
//
// Thread-safe given a scratch for each thread.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/common/quantize_rows.h"
#include "quant/block_table.h"
#include "quant/format.h"

namespace prefixd::kernels {

// Positions [64 i, 64 i + 64) make tile i, whatever the blocks. This partition fixes the order of
// every sum.
inline constexpr uint32_t kTileTokens = 64;
inline constexpr uint32_t kStepTokens = 16;  // tokens dequantized and transposed at a time
inline constexpr uint32_t kMaxTileRows = 6;  // query rows times heads in one register tile
inline constexpr uint32_t kStripRows = 16;   // row heads whose softmax on codes runs together

struct AttendJob {
  const quant::BlockTableEntry* blocks = nullptr;
  const quant::KvFormat* formats = nullptr;
  const float* q = nullptr;
  float* out = nullptr;
  AttentionShape shape;  // strides filled in
  // Number of elements that share a scale and a bias in every code format; 0 if codes are not
  // multiplied as they are.
  uint32_t key_group = 0, value_group = 0;
  bool any_raw = false;  // one of `formats` holds floats
  bool codes() const { return key_group != 0; }
  bool floats() const { return !codes() || any_raw; }
  uint32_t group() const { return shape.query_heads / shape.kv_heads; }
};

// Whether K or V is stored as floats of any width, not as integer codes. Both are then attended to
// as floats.
inline bool HoldsFloats(const quant::TensorFormat& format) {
  return format.codec == quant::Codec::kRaw || quant::IsBlockFloat(format.codec);
}
inline bool HoldsFloats(const quant::KvFormat& format) {
  return HoldsFloats(format.key) || HoldsFloats(format.value);
}

struct AttendSlice {
  uint32_t kv_head = 0;
  uint32_t first_row = 0;
  uint32_t rows = 0;
};

// The tokens that one arithmetic takes. The other arithmetic takes the rest, and the results are
// merged. The choice depends on the token alone, hence not on its neighbours or on later tokens.
enum class TokenKind : uint8_t { kAny, kCodes, kRaw };

// Softmax state of one query row and head: its weights are 2^(score - max), `sum` is their sum.
struct RowState {
  float max = 0;
  float sum = 0;
};

// Working memory of attention on codes. Codes are bytes of full range; a factor is one or two
// digits of a byte each (code_factors-inl.h). Groups are those of the job.
struct CodeScratch {
  int8_t* query = nullptr;       // [row_heads + kStripRows][digits][key_dim, groups padded to 64]
  float* query_steps = nullptr;  // [row_heads + kStripRows]: what 1 of `query` is worth
  float* query_sums = nullptr;   // [row_heads][key groups], sums of `query`
  uint32_t* keys = nullptr;      // KeyWords and ValueWords that are not read in place
  uint32_t* values = nullptr;
  uint8_t* rows = nullptr;         // [kStepTokens][key_dim or value_dim], before they become words
  float* key_scales = nullptr;     // [key groups][kTileTokens]
  float* key_biases = nullptr;     // the same
  float* value_scales = nullptr;   // [value groups][kTileTokens]
  float* value_biases = nullptr;   // the same
  uint8_t* value_signs = nullptr;  // the same: XOR masks that make a token's bytes signed
  int32_t* dots = nullptr;         // [kStripRows][digits][kTileTokens or elements of a value group]
  int8_t* weights = nullptr;       // [value groups][kStripRows][digits][kTileTokens]
  float* value_inverses = nullptr;  // [value groups][kStripRows]: 1 / value_steps, or 0
  float* value_steps = nullptr;     // [value groups][kStripRows]: what 1 of a value dot is worth
  // Softmax: weights are 2^(score - maximum). The last dimension of sums is still to be added up.
  float* ones = nullptr;             // [row_heads + kStripRows], all 1: steps of capped scores
  float* totals = nullptr;           // [row_heads], sums of all weights, set at the end
  float* maxima = nullptr;           // [row_heads + kStripRows]
  float* weight_sums = nullptr;      // [row_heads][16]
  float* bias_sums = nullptr;        // [row_heads][value groups][16]: of weights times biases
  float* row_lanes = nullptr;        // [kStripRows][16], maxima of scores
  float* largest_weights = nullptr;  // [kStripRows], in this tile
  float* largest_scales = nullptr;   // [value groups], of the tile
};

// One thread's working memory, a few hundred KiB: its size follows from the dims and from the rows
// of a slice, never from the context.
struct AttendScratch {
  // Points into `memory`: zeroed, aligned to kAlignment, Bytes() long. Null: only computes sizes.
  AttendScratch(const AttendJob& job, size_t row_heads, std::byte* memory);
  static size_t Bytes(const AttendJob& job, size_t row_heads);

  static constexpr size_t kAlignment = 64;
  size_t bytes = 0;
  size_t key_pitch = 0;        // floats of a padded row of K and q
  size_t value_pitch = 0;      // the same of V and the sums
  float* sums = nullptr;       // [row_heads][value_pitch]
  RowState* states = nullptr;  // [row_heads]
  float* scores = nullptr;     // [kStripRows][kTileTokens]
  RowScratch rows;
  // For attention in floats only:
  float* query = nullptr;     // [row_heads][key_pitch], scaled
  float* keys = nullptr;      // [key_pitch][kTileTokens]
  float* values = nullptr;    // [kTileTokens][value_pitch]
  float* key_rows = nullptr;  // [kStepTokens][key_pitch], before the transpose
  // For attention on codes only:
  CodeScratch code;
};

// Returns whether this machine multiplies codes at a higher rate than floats. Only then may a job
// have groups.
bool MultipliesCodes();

// Writes the slice's rows of job.out.
void RunSlice(const AttendJob& job, const AttendSlice& slice, const AttendScratch& scratch);

}  // namespace prefixd::kernels
