// Fused attention straight on quantized KV pages: online softmax over a block table, nothing
// dequantized beyond one tile.
//
// Thread-safe. A call allocates scratch for each thread that works for it; the size depends on the
// shape and the tile, never on the context length. Threads are kept for later calls. Highway
// chooses the SIMD target at run time. AttendScalar is the oracle.
//
// Order of arithmetic: positions [64 i, 64 i + 64) are tile i; tiles are added in order, tokens of
// a tile one after the other. Hence one query row's result is the same bits whichever other rows,
// later tokens, threads, block borders and page geometries the call has. Dispatch targets differ
// from each other in the last bits.
// On CPUs with AVX512_VNNI, Attend rounds q and the weights to 15 bits and a sign (fast modes:
// fewer) and multiplies them with integer codes as stored, in tile registers where the process may
// use AMX: the same integers, the same bits. Blocks that hold floats, and all blocks on other CPUs,
// are computed in float. On normally distributed data the root mean square error of both ways is
// below 0.1 % of that of the result, and no error is above 3e-4 of the largest result. Errors grow
// with the scores, to 1e-3 at scores of 100. Weights are rounded relative to a row's largest weight
// in a tile times the tile's largest scale: a value of 100 times the others' scale costs those 7
// bits. Stored values are read as code * scale + bias in float; MLX's f16 and bf16 formats are not
// rounded to their dtype as Dequantize does. NaN and infinity reach only rows that see their token.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "quant/block_table.h"

namespace prefixd::kernels {

// kPrecise: keeps all promises above.
// kFastPrefill: keeps all of them but the error bounds. Queries are rounded to 7 bits and a sign,
// weights to 8 bits. On normally distributed data the root mean square error is below 1.8 % of that
// of the result, about 1.1 %; 8-bit keys and values alone cost 0.8 %, 4-bit values 9 %.
// kFast: runs at the speed of memory for calls of 1 to 8 query rows, over raw pages and pages of
// formats that have a tiled layout, on a CPU with AVX512_VNNI; at half of that speed and less on
// one with AVX2 alone. Pages in layout rows are tiled a tile at a time and give the same bits.
// Queries and weights are rounded to 8 bits, or to 15 where neither keys nor values have 4 bits;
// without AVX512_VNNI to 16 for whichever of both has 8 bits. Errors stay below 1.8 % for 8-bit
// keys and 4-bit values, below 0.05 % where both have 8 bits. Raw pages are computed in float. A
// row's bits may depend on block borders, never on other rows or threads. NaN and infinity reach
// only rows that see their token. Window, sinks and soft-cap: as in kPrecise. Any other call is
// computed as kFastPrefill.
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
  // If not 0, the row at position p sees only positions > p - window and positions < sink_tokens.
  // Tokens that no row of the call sees are not read.
  uint32_t window = 0, sink_tokens = 0;
  // If not 0, a score is soft_cap * tanh(q.k * scale / soft_cap).
  float soft_cap = 0;
  // [query_heads]: learned scores of a token without a value, -infinity for none. Null: no scores.
  const float* sink_logits = nullptr;
  // Strides in floats; 0 = dense [query_rows][query_heads][dim].
  size_t query_row_stride = 0, query_head_stride = 0;
  size_t out_row_stride = 0, out_head_stride = 0;
};

// Computes attention of `q` [query_rows][query_heads][key_dim] into `out`
// [query_rows][query_heads][value_dim], both float, by the strides above.
// table: the layer's blocks in position order; block b starts where the block before it ended.
// A block that no row sees because of the window may have null units.
// formats: what BlockTableEntry::format indexes.
// Returns InvalidArgument, with nothing written, when the shape, a format or a table entry is
// impossible, or when the table holds fewer than first_position + query_rows tokens;
// ResourceExhausted when memory is short.
absl::Status Attend(quant::BlockTable table, std::span<const quant::KvFormat> formats,
                    const float* q, float* out, const AttentionShape& shape);

// Computes the same with the scalar codecs and double accumulation; for tests.
absl::Status AttendScalar(quant::BlockTable table, std::span<const quant::KvFormat> formats,
                          const float* q, float* out, const AttentionShape& shape);

// Returns the dispatch target that Attend runs on, "AVX2" for example.
const char* AttentionTarget();
// Returns the order in which mode kFast works on this CPU: "pipelined", "staged", or "none" where
// it has no fast mode. Results are the same bits in both orders. Without AVX512_VNNI there is one.
const char* FastDecodeOrder();

}  // namespace prefixd::kernels
