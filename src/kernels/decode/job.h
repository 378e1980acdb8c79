// What the parts of fast decode attention share. It multiplies few query rows with the stored codes
// as they are. Internal to kernels/; everything here has been validated.
//
// The context is cut into runs of kRunTokens tokens; runs s, s + kSlots, s + 2 kSlots ... are
// summed up in slot s, in order, and the slots are merged at the end. So sums depend on positions
// only, and their memory does not depend on the context.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "quant/block_table.h"
#include "quant/format.h"
#include "quant/unit.h"

namespace prefixd::kernels {

inline constexpr uint32_t kRunTokens = 2048;
inline constexpr uint32_t kSlots = 16;
inline constexpr uint32_t kDecodeTile = 64;  // tokens of a block whose softmax is computed together
inline constexpr uint32_t kStripHeads = 4;   // row heads that share each loaded register
inline constexpr uint32_t kMaxDecodeRows = 8;
inline constexpr float kLog2E = 1.44269504f;  // weights are powers of 2

// One query row and its position. Its heads lie apart by the job's strides.
struct DecodeRow {
  const float* q = nullptr;
  float* out = nullptr;
  uint64_t position = 0;
};

// Returns which of at most 64 tokens from `begin` on the row at `position` sees: bit t is token t.
inline uint64_t SeenTokensOf(const AttentionShape& shape, uint64_t position, uint64_t begin,
                             uint32_t tokens) {
  const auto first_bits = [](uint64_t count) {
    return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
  };
  if (position < begin) return 0;
  const uint64_t seen = first_bits(std::min<uint64_t>(tokens, position + 1 - begin));
  if (shape.window == 0 || position + 1 <= begin + shape.window) return seen;
  const uint64_t behind = position + 1 - begin - shape.window;  // tokens before the window
  const uint64_t sinks = shape.sink_tokens > begin ? shape.sink_tokens - begin : 0;
  return seen & (~first_bits(behind) | first_bits(sinks));
}

// Consecutive rows of the job and what they attend to.
struct DecodeSequence {
  quant::BlockTable blocks;
  uint32_t first_row = 0, end_row = 0;
};

// What one tensor's codes mean: scale * code + bias, or scale * (code - middle) if not `biased`. A
// raw tensor holds plain numbers and has only `format`, `dim` and `raw`.
struct DecodeTensor {
  const quant::TensorFormat* format = nullptr;
  uint32_t dim = 0;
  uint32_t group = 0, groups = 0;
  bool raw = false;
  uint32_t bits = 0;       // 8 or 4
  bool is_signed = false;  // codes are signed bytes
  bool biased = false;
  float middle = 0;  // of the codes' range, where rounding costs least
  // True for layout rows: each tile is first brought into the order of a tiled unit of kDecodeTile
  // tokens.
  bool in_rows = false;
  quant::UnitShape tile;
  quant::UnitLayout tile_layout;
};
struct DecodeFormat {
  DecodeTensor key, value;
  // Signed bytes of each query and weight code: two where one would cost more precision than the
  // stored codes do. Where the machine multiplies no bytes each code has 16 bits.
  uint32_t digits = 1;
};

inline constexpr size_t kMostCodeBytes = 2;  // of a query's or weight's code

// One group of a row head's query. `step` is what 1 of its codes is worth. With a token's scale and
// bias, the group adds (dot of codes * step + centre) * scale + sum * bias to its score.
struct QueryTerm {
  float step = 0, centre = 0, sum = 0;
};
// The queries in the form that keys of one format need. Row heads are in order [kv head][row][head
// of the group].
struct DecodeQueries {
  // [digits][row_heads][key_dim] signed bytes, most significant digit first, or where the machine
  // multiplies no bytes: [row_heads][key_dim] of 16 bits, in the order of StoreFactors
  int8_t* codes = nullptr;
  QueryTerm* terms = nullptr;  // [row_heads][key groups]
  float* floats = nullptr;     // [row_heads][key_dim], instead of both when keys are raw
};

// Sums so far, each [kSlots][row_heads]: weights are 2^(score - reference).
struct DecodeSums {
  float* references = nullptr;  // a score that the row head has seen, or -FLT_MAX
  float* weights = nullptr;     // [16], still to be added up
  float* values = nullptr;      // [value_pitch]
  // [job.offset_groups][16], still to be added up: what the codes of values leave out, the same for
  // each channel of job.offset_channels. Added to `values` at the end of a part.
  float* offsets = nullptr;
};

struct DecodeJob {
  std::span<const quant::KvFormat> formats;
  std::span<const DecodeFormat> tensors;   // by format index
  std::span<const DecodeQueries> queries;  // the same
  std::span<const DecodeRow> rows;
  AttentionShape shape;  // strides filled in; query_rows and first_position do not count
  std::span<const DecodeSequence> sequences;  // those whose tables begin alike stand side by side
  DecodeSums sums;
  size_t value_pitch = 0;
  uint32_t offset_channels = 0;  // a divisor of each coded format's value group
  uint32_t offset_groups = 0;    // 0 if all values are raw
  uint32_t slots = 0;            // bit s: rows see tokens of slot s; other slots are not touched
  uint32_t group() const { return shape.query_heads / shape.kv_heads; }
  uint32_t row_heads() const { return static_cast<uint32_t>(rows.size()) * shape.query_heads; }
};

// One thread's working memory, for one tile.
struct DecodeScratch {
  float* key_scales = nullptr;      // [key groups][kDecodeTile]
  float* key_biases = nullptr;      // the same, of the middle code
  float* value_scales = nullptr;    // [value groups][kDecodeTile]
  float* value_biases = nullptr;    // the same, of the middle code
  float* scores = nullptr;          // [kStripHeads][kDecodeTile], then weights
  float* products = nullptr;        // [4 groups][kStripHeads][kDecodeTile], in a pipeline: weights
                                    // times scales
  float* lanes = nullptr;           // [16][16]
  int8_t* codes = nullptr;          // [kMostCodeBytes][4 groups][kStripHeads][kDecodeTile]
  std::byte* key_tile = nullptr;    // a tile of a page in layout rows, as a tiled unit
  std::byte* value_tile = nullptr;  // two of them: in a pipeline one is still to be added
};

// A piece of work: some kv heads over the runs of one slot.
struct DecodePart {
  uint32_t slot = 0;
  uint32_t first_head = 0, end_head = 0;
};

// Returns whether this machine has the instructions for fast decode, and those for its pipeline.
bool DecodesCodes();
bool DecodesInPipeline();
// Fills the memory that job.queries[format] points to.
void PrepareQueries(const DecodeJob& job, uint32_t format);
void RunDecodePart(const DecodeJob& job, const DecodePart& part, const DecodeScratch& scratch);
// Merges the job's slots into the rows' results.
void MergeSlots(const DecodeJob& job);

}  // namespace prefixd::kernels
