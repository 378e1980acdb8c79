#include "prefixd/attention.h"

#include "absl/strings/str_cat.h"

#include "attend_layer.h"
#include "block/layer_group.h"
#include "convert.h"
#include "kernels/attention.h"
#include "kernels/hadamard.h"
#include "quant/format.h"

namespace prefixd {
namespace {

Status AttendInner(std::span<const BlockTableEntry> table, std::span<const KvFormat> formats,
                   const float* q, float* out, const AttendOptions& options) {
  if (options.first_position == AttendOptions::kNotSet) {
    return client::ToPublic(
        absl::InvalidArgumentError("attend: first_position, of query row 0, is not set"));
  }
  const kernels::AttentionShape shape{.query_rows = options.query_rows,
                                      .query_heads = options.query_heads,
                                      .kv_heads = options.kv_heads,
                                      .key_dim = options.key_dim,
                                      .value_dim = options.value_dim,
                                      .first_position = options.first_position,
                                      .scale = options.scale,
                                      .threads = options.threads,
                                      .mode = static_cast<kernels::AttentionMode>(options.mode),
                                      .window = options.window,
                                      .sink_tokens = options.sink_tokens,
                                      .soft_cap = options.soft_cap,
                                      .sink_logits = options.sink_logits,
                                      .query_row_stride = options.query_row_stride,
                                      .query_head_stride = options.query_head_stride,
                                      .out_row_stride = options.out_row_stride,
                                      .out_head_stride = options.out_head_stride};
  return client::ToPublic(kernels::Attend(table, formats, q, out, shape));
}

// Sets a field that the layer knows. Returns false if the caller set it to something else.
bool SetFromLayer(uint32_t of_layer, uint32_t* field) {
  if (*field != 0 && *field != of_layer) return false;
  *field = of_layer;
  return true;
}

}  // namespace

Status Attend(std::span<const BlockTableEntry> table, std::span<const KvFormat> formats,
              const float* q, float* out, const AttendOptions& options) {
  if (formats.empty() || formats.size() > block::kMaxLadder) {
    return client::ToPublic(absl::InvalidArgumentError(
        absl::StrCat("attend: ", formats.size(), " formats, must be 1 to ", block::kMaxLadder)));
  }
  return AttendInner(table, formats, q, out, options);
}

Status client::AttendLayer(const block::LayerGroup& group, std::span<const BlockTableEntry> table,
                           const float* q, float* out, AttendOptions options) {
  const uint32_t value_dim = group.value_source == block::ValueSource::kKeyPrefix
                                 ? group.value_prefix_dim
                                 : group.value_dim;
  const bool known = SetFromLayer(group.kv_heads, &options.kv_heads) &&
                     SetFromLayer(group.key_dim, &options.key_dim) &&
                     SetFromLayer(value_dim, &options.value_dim) &&
                     SetFromLayer(group.window, &options.window) &&
                     SetFromLayer(group.sink_tokens, &options.sink_tokens);
  if (!known) {
    return ToPublic(absl::InvalidArgumentError(absl::StrCat(
        "attend: kv_heads, key_dim, value_dim, window or sink_tokens is not the layer's: ",
        group.kv_heads, ", ", group.key_dim, ", ", value_dim, ", ", group.window, ", ",
        group.sink_tokens, "; leave them 0")));
  }
  return AttendInner(table, group.ladder, q, out, options);
}

Status Rotate(float* vectors, size_t count, size_t stride, uint32_t dim) {
  const absl::Status fits = quant::Validate(quant::Rotated(quant::RawFormat(Dtype::kF32)), dim);
  if (!fits.ok()) return client::ToPublic(fits);
  if (stride != 0 && stride < dim) {
    return client::ToPublic(absl::InvalidArgumentError(
        absl::StrCat("rotate: stride ", stride, " does not hold a vector of ", dim)));
  }
  kernels::RotateRows(vectors, count, stride == 0 ? dim : stride, dim);
  return {};
}

}  // namespace prefixd
