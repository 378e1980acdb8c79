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
// with queries and weights of 8 bits (15 where neither K nor V has 4): relative error below 1.8 %
// for 8-bit K and 4-bit V, which cost 9 % themselves, below 0.05 % where both have 8 bits. Other
// calls and formats: as kFastPrefill.
// kFastPrefill: any number of rows. Codes are multiplied with queries and weights of 8 bits
// whatever the format: error about 1.1 %, below 1.8 %, where 8-bit K and V cost 0.8 % themselves;
// about 1.6 times as fast as kPrecise. Both: on CPUs without AVX512_VNNI as kPrecise.
enum class AttendMode : uint8_t { kPrecise = 0, kFast = 1, kFastPrefill = 2 };

struct AttendOptions {
  uint32_t query_rows = 1;
  uint32_t query_heads = 0;  // a multiple of kv_heads
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  uint32_t first_position = 0;  // of query row 0; row i sees positions <= first_position + i
  float scale = 0;
  uint32_t threads = 1;
  AttendMode mode = AttendMode::kPrecise;
  // Not 0: the row at position p sees positions > p - window only, and positions < sink_tokens.
  // What no row of the call sees is not read, and its blocks may be absent: without units.
  uint32_t window = 0, sink_tokens = 0;
  float soft_cap = 0;            // not 0: a score is soft_cap * tanh(q.k * scale / soft_cap)
  const float* sinks = nullptr;  // [query_heads] or null: learned scores of a token without a value
  // In floats; 0 = dense [query_rows][query_heads][dim].
  size_t query_row_stride = 0, query_head_stride = 0;
  size_t out_row_stride = 0, out_head_stride = 0;
};

// q: [query_rows][query_heads][key_dim] by the strides, out: [query_rows][query_heads][value_dim].
// `formats`: what BlockTableEntry::format indexes: the layer's LayerSpec::formats. Invalid input
// changes nothing and says what.
Status Attend(std::span<const BlockTableEntry> table, std::span<const KvFormat> formats,
              const float* q, float* out, const AttendOptions& options);

// Turns `count` vectors of `dim` floats in place, vector i at vectors + i * stride (0 = dense), as
// Rotation::kHadamard means it: queries and keys before attention and Append, values too, and what
// attention puts out, whose dimension is that of the values, back again: it is its own inverse, up
// to rounding. InvalidArgument when `dim` cannot be rotated (its multiples of 16 can).
Status Rotate(float* vectors, size_t count, size_t stride, uint32_t dim);

}  // namespace prefixd
