// Fused attention over the block tables that a Sequence gives, straight on quantized pages.
// Standard-library types only.
//
// Thread-safe; scratch does not grow with the context. One query row's result does not depend on
// which other rows, chunks or how many threads share the call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "prefixd/client.h"

namespace prefixd {

// kFast: 1 to 8 query rows over tiled and raw pages at the speed of memory. Codes are multiplied
// with queries and weights of 8 bits (of 15 if neither K nor V has 4). The relative error is below
// 1.8 % for 8-bit K and 4-bit V, whose quantization costs 9 %, and below 0.05 % if both have 8
// bits. Other calls and formats run as kFastPrefill.
// kFastPrefill: any number of rows. Codes of every format are multiplied with queries and weights
// of 8 bits. The error is about 1.1 %, below 1.8 %, where quantizing K and V to 8 bits costs
// 0.8 %. About 1.6 times as fast as kPrecise.
// Without AVX512_VNNI kFastPrefill runs as kPrecise, and kFast takes two to three times as long;
// without AVX2, which most x86 CPUs since 2015 have, kFast runs as kPrecise too.
enum class AttendMode : uint8_t { kPrecise = 0, kFast = 1, kFastPrefill = 2 };

struct AttendOptions {
  static constexpr uint32_t kNotSet = ~uint32_t{0};

  uint32_t query_rows = 1;
  uint32_t query_heads = 0;  // a multiple of kv_heads
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  // The position of query row 0; row i sees positions <= first_position + i. Attend() refuses the
  // options if it is not set.
  uint32_t first_position = kNotSet;
  float scale = 0;  // of q.k, mostly 1 / sqrt(key_dim); 0 is refused
  uint32_t threads = 1;
  AttendMode mode = AttendMode::kPrecise;
  // If not 0, the row at position p sees only positions > p - window and positions < sink_tokens.
  // Blocks that no row of the call sees are not read and may be absent, that is, without units.
  uint32_t window = 0, sink_tokens = 0;
  float soft_cap = 0;  // if not 0, a score is soft_cap * tanh(q.k * scale / soft_cap)
  const float* sink_logits =
      nullptr;  // [query_heads] or null: learned scores of a token without a value
  // In floats; 0 = dense [query_rows][query_heads][dim].
  size_t query_row_stride = 0, query_head_stride = 0;
  size_t out_row_stride = 0, out_head_stride = 0;
};

// Computes the attention of `q`, [query_rows][query_heads][key_dim], over `table` into `out`,
// [query_rows][query_heads][value_dim], both by the strides of `options`. `formats` is the layer's
// LayerSpec::formats, which BlockTableEntry::format indexes. Invalid input changes nothing; the
// status says what is wrong.
Status Attend(std::span<const BlockTableEntry> table, std::span<const KvFormat> formats,
              const float* q, float* out, const AttendOptions& options);

// Applies Rotation::kHadamard in place to `count` vectors of `dim` floats. Vector i begins at
// vectors + i * stride; a stride of 0 means dense. Rotate keys and values before Append and queries
// before Attend. Rotate Attend's output, which has the values' dimension, back by the same call:
// the rotation is its own inverse, up to rounding. InvalidArgument if `dim` cannot be rotated
// (multiples of 16 can).
Status Rotate(float* vectors, size_t count, size_t stride, uint32_t dim);

}  // namespace prefixd
