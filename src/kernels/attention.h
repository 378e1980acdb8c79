// Fused attention straight on quantized KV pages: online softmax over a block table, nothing
// dequantized beyond one tile.
//
// Thread-safe; a call allocates scratch for each thread that works for it, whose size depends on
// the shape and the tile and never on the context length. Threads are kept for later calls. SIMD
// target chosen at run time (Highway); AttendScalar is the oracle.
//
// Order of arithmetic: positions [64 i, 64 i + 64) are tile i; tiles are added in order, tokens of
// a tile one after the other. Hence one query row's result is the same bits whichever other rows,
// later tokens, threads, block borders and page geometries the call has. Dispatch targets differ
// from each other in the last bits.
// On CPUs with AVX512_VNNI, blocks that are not raw are not turned into floats: q and the weights
// are rounded to 15 bits and a sign (fast modes: fewer) and multiplied with the stored codes, in
// tile registers where the process may have AMX: the same integers, the same bits. Raw blocks, and
// all on other CPUs, are float. On normal data the root of the mean square error of both is below
// 0.1 % of that of the result, and no error above 3e-4 of the largest result; errors grow with the
// scores, to 1e-3 where these are 100. Weights are rounded relative to the largest of a row in a
// tile times the tile's largest scale: a value of 100 times the others' scale costs those 7 bits.
// Stored values are read as code * scale + bias in float: MLX's f16 and bf16 formats are not
// rounded to their dtype as Dequantize does. NaN and infinity reach only rows that see their token.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "quant/block_table.h"

namespace prefixd::kernels {

// kPrecise: the promises above.
// kFastPrefill: all of them but the error. Queries are rounded to 7 bits and a sign, weights to 8
// bits. Root of the mean square error relative to that of the result, normal data: below 1.8 %,
// about 1.1 %, where 8-bit keys and values cost 0.8 % themselves and 4-bit values 9 %.
// kFast: calls of 1 to 8 query rows over raw pages and those of formats that have a tiled layout,
// on a CPU with AVX512_VNNI, go at the speed of memory; pages in rows are brought into tiles a tile
// at a time, and give the same bits. Queries and weights are rounded to 8 bits, to 15 where neither
// keys nor values have 4: errors stay below 1.8 % for 8-bit keys and 4-bit values, below 0.05 %
// where both have 8 bits. Raw: float. A row's bits may then depend on block borders, never on other
// rows or threads; NaN and infinity reach only rows that see their token. Window, sinks and
// soft-cap as in kPrecise. Any other call is computed as kFastPrefill.
enum class AttentionMode : uint8_t { kPrecise = 0, kFast = 1, kFastPrefill = 2 };

struct AttentionShape {
  uint32_t query_rows = 1;  // tokens asked for in this call: 1 = decode, more = prefill
  uint32_t query_heads =
      0;  // a multiple of kv_heads (grouped queries: heads h*G .. h*G+G-1 read kv head h)
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  // Causal: row i stands at position first_position + i and sees positions <= its own.
  uint32_t first_position = 0;
  float scale = 0;       // applied to q.k; usually 1/sqrt(key_dim)
  uint32_t threads = 1;  // at most; short calls stay on the calling thread
  AttentionMode mode = AttentionMode::kPrecise;
  // Not 0: the row at position p sees positions > p - window only, and positions < sink_tokens.
  // What no row of the call sees is not read.
  uint32_t window = 0, sink_tokens = 0;
  // Not 0: a score is soft_cap * tanh(q.k * scale / soft_cap).
  float soft_cap = 0;
  // [query_heads] or null: learned scores of a token without a value; -infinity is none.
  const float* sinks = nullptr;
  // Strides in floats; 0 = dense [query_rows][query_heads][dim].
  size_t query_row_stride = 0, query_head_stride = 0;
  size_t out_row_stride = 0, out_head_stride = 0;
};

// q: float, out: float [query_rows][query_heads][value_dim] by the strides above.
// table: the layer's blocks in position order; block b starts where the block before it ended.
// A block that no row sees, for the window, may have no units.
// formats: what BlockTableEntry::format indexes.
// InvalidArgument (nothing written) when the shape, a format or a table entry is impossible, or
// when the table holds fewer than first_position + query_rows tokens.
absl::Status Attend(quant::BlockTable table, std::span<const quant::KvFormat> formats,
                    const float* q, float* out, const AttentionShape& shape);

// The same by the scalar codecs and double accumulation; for tests.
absl::Status AttendScalar(quant::BlockTable table, std::span<const quant::KvFormat> formats,
                          const float* q, float* out, const AttentionShape& shape);

// The dispatch target that Attend runs on, "AVX2" for example.
const char* AttentionTarget();

}  // namespace prefixd::kernels
