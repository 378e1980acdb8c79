#include "kernels/common/check_attention.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::kernels {
namespace {

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("attend: ", parts...));
}

absl::Status CheckCounts(const AttentionShape& shape) {
  if (shape.query_rows == 0) return Refuse("query_rows is 0, must be at least 1");
  if (shape.kv_heads == 0) return Refuse("kv_heads is 0, must be at least 1");
  if (shape.query_heads == 0 || shape.query_heads % shape.kv_heads != 0) {
    return Refuse("query_heads ", shape.query_heads, " is not a multiple of kv_heads ",
                  shape.kv_heads);
  }
  if (shape.key_dim == 0) return Refuse("key_dim is 0, must be at least 1");
  if (shape.value_dim == 0) return Refuse("value_dim is 0, must be at least 1");
  if (shape.threads == 0) return Refuse("threads is 0, must be at least 1");
  if (!std::isfinite(shape.scale)) return Refuse("scale is not finite");
  if (shape.scale == 0) return Refuse("scale is 0, must be that of q.k, mostly 1 / sqrt(key_dim)");
  if (!std::isfinite(shape.soft_cap) || shape.soft_cap < 0) {
    return Refuse("soft_cap is ", shape.soft_cap, ", must be 0 for none, or positive");
  }
  return absl::OkStatus();
}

absl::Status CheckSinks(const AttentionShape& shape) {
  if (shape.sink_logits == nullptr) return absl::OkStatus();
  for (uint32_t head = 0; head < shape.query_heads; ++head) {
    const float sink = shape.sink_logits[head];
    if (std::isfinite(sink) || sink < 0) continue;
    return Refuse("the sink of head ", head, " is ", sink, ", must be a number or -inf");
  }
  return absl::OkStatus();
}

// Results are written concurrently and must not overlap: heads inside rows or rows inside heads.
absl::Status CheckOutStrides(const AttentionShape& shape) {
  size_t inner = shape.out_head_stride;
  size_t outer = shape.out_row_stride;
  size_t inner_count = shape.query_heads;
  size_t outer_count = shape.query_rows;
  if (inner > outer) {
    std::swap(inner, outer);
    std::swap(inner_count, outer_count);
  }
  const bool inner_fits = inner_count == 1 || inner >= shape.value_dim;
  const size_t inner_extent =
      inner_count == 1 ? shape.value_dim : (inner_count - 1) * inner + shape.value_dim;
  if (inner_fits && (outer_count == 1 || outer >= inner_extent)) return absl::OkStatus();
  return Refuse("results overlap: out_row_stride ", shape.out_row_stride, ", out_head_stride ",
                shape.out_head_stride, ", ", shape.query_heads, " heads of ", shape.value_dim,
                " floats");
}

// Returns whether a row of the call sees any of tokens [begin, end).
bool IsSeen(const AttentionShape& shape, uint64_t begin, uint64_t end) {
  if (shape.window == 0 || begin < shape.sink_tokens) return true;
  const uint64_t first = uint64_t{shape.first_position} + 1;
  return end > (first > shape.window ? first - shape.window : 0);
}

absl::Status CheckEntry(size_t at, const quant::BlockTableEntry& entry, size_t formats) {
  if (entry.units == nullptr) return Refuse("block ", at, " has no units");
  if (entry.page_tokens == 0) return Refuse("block ", at, " has page_tokens 0, must be at least 1");
  if (entry.tokens > entry.page_tokens) {
    return Refuse("block ", at, " has ", entry.tokens, " tokens in ", entry.page_tokens, " slots");
  }
  if (entry.format >= formats) {
    return Refuse("block ", at, " has format ", entry.format, ", ", formats, " formats are given");
  }
  return absl::OkStatus();
}

// `position` is that of `format` in `formats`. Only formats that a block uses must fit.
absl::Status CheckFormat(size_t position, const quant::KvFormat& format,
                         const AttentionShape& shape) {
  const absl::Status key = quant::Validate(format.key, shape.key_dim);
  if (!key.ok()) return Refuse("key of format ", position, ": ", key.message());
  const absl::Status value = quant::Validate(format.value, shape.value_dim);
  if (!value.ok()) return Refuse("value of format ", position, ": ", value.message());
  return absl::OkStatus();
}

absl::Status CheckTable(quant::BlockTable table, std::span<const quant::KvFormat> formats,
                        const AttentionShape& shape) {
  uint64_t tokens = 0;
  const quant::BlockTableEntry* checked = nullptr;  // a format is checked only where it changes
  for (size_t at = 0; at < table.size(); ++at) {
    const quant::BlockTableEntry& entry = table[at];
    if (entry.units == nullptr && !IsSeen(shape, tokens, tokens + entry.tokens)) {
      tokens += entry.tokens;
      continue;
    }
    PREFIXD_RETURN_IF_ERROR(CheckEntry(at, entry, formats.size()));
    if (checked == nullptr || checked->format != entry.format) {
      PREFIXD_RETURN_IF_ERROR(CheckFormat(entry.format, formats[entry.format], shape));
    }
    checked = &entry;
    tokens += entry.tokens;
  }
  const uint64_t wanted = uint64_t{shape.first_position} + shape.query_rows;
  if (tokens >= wanted) return absl::OkStatus();
  return Refuse("the table holds ", tokens, " tokens, positions up to ", wanted - 1,
                " are asked for");
}

}  // namespace

absl::StatusOr<AttentionShape> CheckAttention(quant::BlockTable table,
                                              std::span<const quant::KvFormat> formats,
                                              const float* q, const float* out,
                                              AttentionShape shape) {
  PREFIXD_RETURN_IF_ERROR(CheckCounts(shape));
  PREFIXD_RETURN_IF_ERROR(CheckSinks(shape));
  if (q == nullptr) return Refuse("q is null");
  if (out == nullptr) return Refuse("out is null");
  if (shape.query_head_stride == 0) shape.query_head_stride = shape.key_dim;
  if (shape.query_row_stride == 0) {
    shape.query_row_stride = shape.query_heads * shape.query_head_stride;
  }
  if (shape.out_head_stride == 0) shape.out_head_stride = shape.value_dim;
  if (shape.out_row_stride == 0) shape.out_row_stride = shape.query_heads * shape.out_head_stride;
  PREFIXD_RETURN_IF_ERROR(CheckOutStrides(shape));
  PREFIXD_RETURN_IF_ERROR(CheckTable(table, formats, shape));
  return shape;
}

}  // namespace prefixd::kernels
