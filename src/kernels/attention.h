// Fused attention straight on quantized KV pages: online softmax over a block table, nothing
// dequantized beyond one tile.
//
// Thread-safe; every call works on its own scratch, whose size depends on the shape and the tile and
// never on the context length. SIMD target chosen at run time (Highway); AttendScalar is the oracle.
// One query row's result does not depend on which other rows or how many threads share the call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "quant/block_table.h"

namespace prefixd::kernels {

struct AttentionShape {
  uint32_t query_rows = 1;   // tokens asked for in this call: 1 = decode, more = prefill
  uint32_t query_heads = 0;  // a multiple of kv_heads (grouped queries: heads h*G .. h*G+G-1 read kv head h)
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  // Causal: row i stands at position first_position + i and sees positions <= its own.
  uint32_t first_position = 0;
  float scale = 0;  // applied to q.k; usually 1/sqrt(key_dim)
  uint32_t threads = 1;
  // Strides in floats; 0 = dense [query_rows][query_heads][dim].
  size_t query_row_stride = 0, query_head_stride = 0;
  size_t out_row_stride = 0, out_head_stride = 0;
};

// q: float, out: float [query_rows][query_heads][value_dim] by the strides above.
// table: the layer's blocks in position order; block b starts where the block before it ended.
// formats: what BlockTableEntry::format indexes.
// InvalidArgument (nothing written) when the shape, a format or a table entry is impossible, or when
// the table holds fewer than first_position + query_rows tokens.
absl::Status Attend(quant::BlockTable table, std::span<const quant::KvFormat> formats, const float* q,
                    float* out, const AttentionShape& shape);

// The same by the scalar codecs and double accumulation; for tests.
absl::Status AttendScalar(quant::BlockTable table, std::span<const quant::KvFormat> formats, const float* q,
                          float* out, const AttentionShape& shape);

// The dispatch target that Attend runs on, "AVX3_DL" for example.
const char* AttentionTarget();

}  // namespace prefixd::kernels
